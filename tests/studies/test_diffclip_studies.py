"""The studies of DiffCLIP, and of CLIPs in the sensitivity paper: from an empty store to numbers, beside the papers."""

import numpy as np
import polars as pl
import pytest

from antiphase.data.shards import CC3M, CC12M
from antiphase.data.sources import PROBE_SETS
from antiphase.evaluation.mmvp import PATTERNS
from antiphase.statistics.decisions import mcnemar_exact
from antiphase.statistics.intervals import jackknife, mean_over_groups
from antiphase.studies.cells import FACTORS
from antiphase.studies.claims import LEAST_SEEDS
from antiphase.studies.estimation import SEED
from antiphase.studies.papers.diffclip.evaluations import (
    RETRIEVAL,
    averaged,
    estimated,
    gains,
    observations,
    published,
    six_tasks,
    spread,
    with_average,
)
from antiphase.studies.plan import known_studies
from antiphase.studies.results import result, study_rows
from antiphase.studies.run import run_cells
from antiphase.studies.spec import Lab, profile
from antiphase.studies.store import Store

LEVELS = ("constant answer", "chance")
EVALUATED = [f"diffclip-{kind}" for kind in ("table-1", "table-2", "table-4", "table-5")]
EVALUATED += [f"diffclip-figure-{number}" for number in (1, 3, 4, 5)]
STUDIES = {name: known_studies()[name] for name in (*EVALUATED, "diffclip-attention", "figure-2b", "figure-2d")}
MODEL = ["trained_on", "series", SEED]


@pytest.fixture(scope="module")
def store(shared_folder):
    """The cells of the smoke profile, each made once, by whichever test of whichever worker asks first."""
    return Store(shared_folder / "smoke")


def smoke(name, store):
    """Return a study's result and rows under smoke."""
    study, small = STUDIES[name], profile("smoke")
    run_cells(study.cells(small), Lab(store, progress=False))
    return result(study, small, store, ""), study_rows(study.cells(small), store)


def test_retrieval_in_the_table_is_the_share_of_captions_and_of_images(store):
    outcome, rows = smoke("diffclip-table-2", store)
    image, text = outcome.artefact.tables[:2]
    for table, setting in ((image, "image"), (text, "text")):
        for series in ("CLIP", "DiffCLIP"):
            queries = rows["evaluate"].filter(series=series, task="retrieval", setting=setting)
            expected = float((queries["rank"] < 5).mean())
            cell = table.cells.filter(row=f"{series}, openmoji")
            assert cell["value"].item() == pytest.approx(expected)
            assert cell["n"].item() == queries["group"].n_unique()


def test_the_spread_over_seeds_of_the_evaluation_is_that_of_the_accuracies(store):
    outcome, rows = smoke("diffclip-table-5", store)
    accuracies = rows["evaluate"].filter(series="CLIP").group_by("seed").agg(pl.mean("score"))
    cells = outcome.artefact.tables[1].cells
    assert cells["row"].to_list() == [f"{name}, openmoji, over evaluation seeds" for name in ("CLIP", "DiffCLIP")]
    assert cells["value"][0] == pytest.approx(accuracies["score"].std())


def test_patterns_and_their_mean_are_those_of_the_pairs(store):
    outcome, rows = smoke("diffclip-figure-4", store)
    pairs = rows["evaluate"].filter(series="DiffCLIP")
    by_pattern = pairs.group_by("pattern", maintain_order=True).agg(pl.mean("score"))
    (bars,) = (plot.panels[0] for plot in outcome.artefact.plots)
    points = bars.points.filter(series="DiffCLIP").sort("x")
    assert points["value"].to_list() == pytest.approx([*by_pattern["score"], by_pattern["score"].mean()])
    assert bars.ticks == (*by_pattern["pattern"], "mean of 3")
    both = [rows["evaluate"].filter(series=name)["score"].to_numpy() > 0.5 for name in ("CLIP", "DiffCLIP")]
    assert outcome.artefact.notes[0].endswith(f"p = {mcnemar_exact(*both):.2g}.")


def test_the_sheets_of_maps_are_drawn_from_stored_rows(store):
    outcome, rows = smoke("diffclip-attention", store)
    queries, measured, parts = outcome.artefact.galleries
    assert [len(sheet.rows) for sheet in (queries, measured, parts)] == [1, 3, 3]
    assert [one.title for one in queries.rows[0]] == [
        "peach; bear",
        "peach: CLIP",
        "peach: DiffCLIP",
        "bear: CLIP",
        "bear: DiffCLIP",
    ]
    for pictures in (*queries.rows, *measured.rows, *parts.rows):
        assert len(pictures) == 5  # two maps for each of two queries
        assert pictures[0].over is None
        assert all(one.over.shape == (4, 4) and one.image.shape == (64, 64, 3) for one in pictures[1:])
    assert [one.title.rpartition(": ")[2] for one in parts.rows[0][1:3]] == ["DiffCLIP, A1 alone", "DiffCLIP, A2 alone"]
    maps = rows["relevance"].filter(pl.col("asked").is_null(), series="DiffCLIP", kind="relevance")
    first = np.array(maps["relevance"][0]).reshape(4, 4)
    assert np.array_equal(measured.rows[0][2].over, first)
    table = outcome.artefact.tables[0].cells
    assert table.filter(row="DiffCLIP")["value"].to_list() == pytest.approx(
        [maps["average_precision"].mean(), maps["pointing_game"].mean(), maps["prefers_own"].mean()]
    )
    assert table.filter(row="a map of one value")["value"].to_list() == pytest.approx(
        [maps["object_share"].mean()] * 2 + [0.5]
    )


UNDRAWN = ("dtd", "flowers102", "aircraft")  # published validation splits leave the probe's seed nothing to draw
SETTINGS = {"few-shot": ("5-way 5-shot",), "retrieval": ("image", "text"), "zero-shot": ("80", "7"), "probe": ("norm",)}


def made_up(cell, draw):
    """Return rows that an evaluation may have: few, random, of sets of unequal size."""
    images = 8 + len(cell.data)
    several = cell.task == "few-shot" or (cell.task == "probe" and cell.data not in UNDRAWN)
    frames = []
    for setting in SETTINGS.get(cell.task, ("",)):
        for seed in range(3 if several else 1):
            owners = {"mmvp": np.repeat(range(9), 5), "image": np.repeat(range(images), 1 + np.arange(images) % 3)}
            group = owners.get(cell.task, owners.get(setting, np.arange(images) % 4))
            right = draw.random(len(group)) < 0.4
            share = cell.task in ("few-shot", "mmvp")
            told = {"score": right.astype(float)} if share else {"rank": np.where(right, 0, 7)}
            named = {"pattern": [PATTERNS[index] for index in group]} if cell.task == "mmvp" else {}
            frames.append(
                pl.DataFrame({"unit": range(len(group)), "group": group, **told, **named}).with_columns(
                    setting=pl.lit(setting), seed=pl.lit(seed, pl.Int64)
                )
            )
    empty = pl.DataFrame(schema={"rank": pl.Int64, "score": pl.Float64, "pattern": pl.String})
    rows = pl.concat([empty, *frames], how="diagonal_relaxed")
    return rows.with_columns(pl.lit(value, FACTORS.get(name)).alias(name) for name, value in cell.factors().items())


@pytest.fixture(scope="module")
def published_rows():
    """Rows as of the paper's profile with two training seeds, of every study of evaluations."""
    draw = np.random.default_rng(0)
    every = {repr(cell): cell for name in EVALUATED for cell in STUDIES[name].cells(profile("paper", 2))}
    return pl.concat([made_up(cell, draw) for cell in every.values()])


def chosen(name, rows):
    """Return those of the rows that a study's cells have."""
    factors = [cell.factors() for cell in STUDIES[name].cells(profile("paper", 2))]
    keys = pl.DataFrame([{key: cell[key] for key in (*MODEL, "task", "data")} for cell in factors])
    return {"evaluate": rows.join(keys, on=keys.columns, how="semi", maintain_order="left")}


@pytest.mark.parametrize(("name", "missing"), [("table-1", 0), ("table-2", 4), ("table-4", 0), ("table-5", 0)])
def test_the_papers_numbers_stand_beside_those_of_the_paper_profile(name, missing, published_rows):
    study = STUDIES[f"diffclip-{name}"]
    tables = study.draw(chosen(study.name, published_rows)).tables
    for table in tables:
        is_level = pl.col("row").is_in(list(LEVELS))
        levels, cells = table.cells.filter(is_level), table.cells.filter(~is_level)
        assert bool(len(levels)) == ("spread" not in table.name)
        if "spread" in table.name:
            cells = cells.filter(pl.col("row").str.contains("evaluation seeds"))
        assert set(cells["row"].str.split(", ").list.get(1)) == {"CC3M", "CC12M"}
        seven = cells.filter(pl.col("column").str.contains("prompts"))
        assert cells["paper"].null_count() == len(seven)
    rows = pl.concat([table.cells for table in tables]).filter(~pl.col("row").is_in(list(LEVELS)))
    assert rows["column"].str.contains("7 prompts").sum() == missing


def test_tables_show_chance_and_constant_answers_below_the_models(published_rows):
    rows = chosen("diffclip-figure-3", published_rows)
    cells = STUDIES["diffclip-figure-3"].draw(rows).tables[0].cells
    images = rows["evaluate"].filter(task="zero-shot", data="imagenet")
    sizes = images.unique(["group", "unit"])["group"].value_counts()["count"]
    levels = {row: cells.filter(row=row, column="imagenet")["value"].item() for row in LEVELS}
    assert levels == pytest.approx({"constant answer": sizes.max() / sizes.sum(), "chance": 1 / len(sizes)})
    assert cells["row"].unique(maintain_order=True).to_list()[-2:] == [*LEVELS]
    shifted = cells.filter(pl.col("column").str.starts_with("imagenet-"), row="chance")["value"].mean()
    assert cells.filter(row="chance", column="Avg. shifted")["value"].to_list() == pytest.approx([shifted])


def test_figures_have_the_numbers_that_the_paper_prints(published_rows):
    three = STUDIES["diffclip-figure-3"].draw(chosen("diffclip-figure-3", published_rows)).plots[0]
    assert [panel.title for panel in three.panels] == ["trained on CC3M", "trained on CC12M"]
    assert three.panels[0].ticks == (
        "imagenet",
        "imagenet-v2",
        "imagenet-a",
        "imagenet-r",
        "imagenet-sketch",
        "Avg. shifted",
    )
    assert three.panels[1].paper.rows() == [("CLIP", 0.0, 0.318), ("DiffCLIP", 0.0, 0.338)]
    four = STUDIES["diffclip-figure-4"].draw(chosen("diffclip-figure-4", published_rows))
    assert four.plots[0].panels[0].ticks == (*PATTERNS, "mean of 7", "mean of 9")
    assert four.plots[0].panels[0].paper.rows() == [("CLIP", 9.0, 0.219), ("DiffCLIP", 9.0, 0.276)]
    assert "over 35 pairs" in four.notes[0]  # of seven patterns of five
    one = STUDIES["diffclip-figure-1"].draw(chosen("diffclip-figure-1", published_rows)).plots[0]
    assert [panel.title for panel in one.panels] == ["trained on CC3M", "difference to CLIP"]
    assert one.panels[1].paper.sort("x")["value"].to_list() == pytest.approx([0.01, 0.007, 0.012, 0.018, 0.008])
    five = STUDIES["diffclip-figure-5"].draw(chosen("diffclip-figure-5", published_rows)).plots[0]
    gained = five.panels[1].paper.filter(series="DiffCLIP†").sort("x")["value"].to_list()
    assert gained == pytest.approx([0.001, 0.003, 0.004, 0.012, 0.019, 0.023])
    assert set(five.panels[0].points["series"]) == {"CLIP", "DiffCLIP", "DiffCLIP*", "DiffCLIP†"}
    assert len(five.panels[1].points) == 18


def test_figure_1s_numbers_are_the_averages_of_the_tables():
    gains = dict(published("figure-1").filter(data="gain").select("task", "value").iter_rows())
    for paper, data in (
        (published("table-1"), "Avg."),
        (published("table-2"), "Avg."),
        (published("table-2"), "imagenet"),
    ):
        tables = paper.filter(pretraining="CC3M", data=data).select("task", "series", "value")
        ours = published("figure-1").filter(data="Avg.").join(tables, on=["task", "series", "value"])
        assert len(ours) == len(tables) > 0
        for (task,), block in tables.group_by("task"):
            means = dict(block.select("series", "value").iter_rows())
            # few-shot: the paper prints averages rounded before and after the difference
            assert gains[task] == pytest.approx(means["DiffCLIP"] - means["CLIP"], abs=1e-9)


def made_of(right):
    """Return rows of MMVP, or of a probe: for each series, data set or pattern, which units are right."""
    frames = [
        pl.DataFrame({"score": np.array(hits, float), "unit": range(len(hits))}).with_columns(
            series=pl.lit(series), data=pl.lit(data), pattern=pl.lit(data), group=pl.lit(index, pl.Int64)
        )
        for series, sets in right.items()
        for index, (data, hits) in enumerate(sets.items())
    ]
    constant = {"trained_on": CC12M, "setting": "", "seed": 0, "rank": None}
    rows = pl.concat(frames).with_columns(pl.lit(value).alias(name) for name, value in constant.items())
    return rows.join(pl.DataFrame({SEED: range(LEAST_SEEDS)}), how="cross")


def test_almost_every_set_allows_one_exception_of_nine():
    better, worse = [1] * 30 + [0] * 3, [0] * 30 + [1] * 3

    def verdict(exceptions):
        sets = {name: worse if index < exceptions else better for index, name in enumerate(PROBE_SETS)}
        other = {name: better if index < exceptions else worse for index, name in enumerate(PROBE_SETS)}
        rows = made_of({"DiffCLIP": sets, "CLIP": other}).with_columns(task=pl.lit("few-shot"))
        *_, claim = STUDIES["diffclip-table-1"].claims({"evaluate": rows})
        assert [check.what.rpartition(", ")[2] for check in claim.checks] == list(PROBE_SETS)
        assert (claim.name, claim.exceptions) == ("few-shot-almost-every", 1)
        return claim.verdict

    assert [verdict(exceptions) for exceptions in (0, 1, 2)] == ["holds", "holds", "contradicted"]


def test_state_and_condition_is_the_papers_exception_among_the_patterns():
    better, worse = [1] * 30 + [0] * 3, [0] * 30 + [1] * 3
    sets = {name: worse if name == "State and Condition" else better for name in PATTERNS}
    other = {name: better if name == "State and Condition" else worse for name in PATTERNS}
    rows = made_of({"DiffCLIP": sets, "CLIP": other}).with_columns(task=pl.lit("mmvp"))
    verdicts = {
        claim.name: (claim.verdict, len(claim.checks))
        for claim in STUDIES["diffclip-figure-4"].claims({"evaluate": rows})
    }
    assert verdicts == {
        "fine-grained": ("holds", 1),
        "by-pattern": ("holds", 6),
        "worse-in-state-and-condition": ("holds", 1),
    }
    swapped = made_of({"DiffCLIP": other, "CLIP": sets}).with_columns(task=pl.lit("mmvp"))
    assert {claim.verdict for claim in STUDIES["diffclip-figure-4"].claims({"evaluate": swapped})} == {"contradicted"}


def test_every_claim_of_the_paper_is_judged(published_rows):
    for name in EVALUATED:
        for claim in STUDIES[name].claims(chosen(name, published_rows)):
            assert claim.checks
            assert claim.verdict != "not run", claim


@pytest.mark.parametrize("name", ["table-1", "table-2", "table-4", "table-5"])
def test_the_papers_rows_have_the_averages_that_it_prints(name):
    keys = ["task", "pretraining", "series"]
    paper = published(name).filter(pl.col("task") != "zero-shot")
    means = paper.filter(pl.col("data") != "Avg.").group_by(keys).agg(pl.mean("value"), pl.len())
    both = means.join(paper.filter(data="Avg.").select(*keys, average="value"), on=keys)
    assert len(both) == len(paper.filter(data="Avg.")) > 0
    # half a unit of the last digit, and what the rounding of the entries themselves may come to
    assert (100 * (both["value"] - both["average"]).abs()).max() <= 0.1 + 1e-9
    assert both["len"].unique().to_list() == [3 if name == "table-2" else len(PROBE_SETS)]


def test_the_papers_numbers_agree_with_its_words():
    def gain(paper, task, pretraining, data="Avg."):
        where = paper.filter(task=task, pretraining=pretraining, data=data)
        values = {name: where.filter(series=name)["value"].item() for name in ("CLIP", "DiffCLIP")}
        return round(100 * (values["DiffCLIP"] - values["CLIP"]), 6)

    assert [gain(published("table-1"), task, "CC3M") for task in ("probe", "few-shot")] == [1.0, 0.7]
    assert [gain(published("table-2"), task, "CC3M") for task in RETRIEVAL] == [1.2, 1.8]
    assert [gain(published("table-2"), "zero-shot", name, "imagenet") for name in ("CC3M", "CC12M")] == [0.8, 2.0]
    assert published("figure-4")["value"].to_list() == [round(right / 105, 3) for right in (23, 29)]
    five = {tuple(row[:4]): row[4] for row in published("figure-5").rows()}
    tables = pl.concat([published("table-1"), published("table-2")]).filter(pl.col("data").is_in(["Avg.", "imagenet"]))
    for task, pretraining, series, _, value, _ in tables.filter(pretraining="CC12M").rows():
        assert five[task, pretraining, series, "Avg."] == value
    for (task, pretraining, series, data), value in five.items():
        if series == "DiffCLIP" and data == "gain" and (task, pretraining, series, "Avg.") in five:
            apart = five[task, pretraining, series, "Avg."] - five[task, pretraining, "CLIP", "Avg."]
            assert value == pytest.approx(apart)
    for task, more in (("zero-shot", 0.008), ("text retrieval", 0.008), ("zero-shot, shifted", -0.008)):
        star, plain = (five[task, "CC12M", name, "gain"] for name in ("DiffCLIP*", "DiffCLIP"))
        assert star - plain == pytest.approx(more)


def test_classes_alike_are_the_mean_over_classes_with_its_interval():
    draw = np.random.default_rng(1)
    group = np.repeat([0, 1, 2], [7, 31, 113])
    right = draw.random(len(group)) < np.array([0.2, 0.5, 0.8])[group]
    rows = pl.DataFrame(
        {
            "series": "CLIP",
            "trained_on": "openmoji",
            SEED: 0,
            "task": "zero-shot",
            "data": "noto-emoji",
            "seed": 0,
            "setting": "own",
            "unit": range(len(group)),
            "group": group,
            "rank": 1 - right.astype(int),
            "score": None,
        },
        schema_overrides={"score": pl.Float64},
    )
    observed = observations(rows)
    expected = mean_over_groups(right.astype(float), group)
    estimate = estimated(observed).row(0, named=True)
    assert estimate["value"] == pytest.approx(expected.value)
    assert estimate["high"] - estimate["low"] == pytest.approx(expected.high - expected.low, rel=0.05)


def test_captions_count_alike_and_images_are_drawn():
    draw = np.random.default_rng(2)
    owners = np.repeat(range(53), draw.integers(1, 6, 53))
    right = draw.random(len(owners)) < draw.random(53)[owners]
    rows = pl.DataFrame(
        {
            "series": "CLIP",
            "trained_on": CC3M,
            SEED: 0,
            "task": "retrieval",
            "data": "flickr8k",
            "setting": "image",
            "seed": 0,
            "unit": range(len(owners)),
            "group": owners,
            "rank": 5 * (1 - right),
            "score": None,
        },
        schema_overrides={"score": pl.Float64},
    )
    estimate = estimated(observations(rows)).row(0, named=True)
    counts = np.bincount(owners)
    expected = jackknife(
        np.stack([np.bincount(owners, right), counts], 1).astype(float), lambda means: means[..., 0] / means[..., 1]
    )
    assert estimate["value"] == pytest.approx(right.mean())
    assert estimate["n"] == 53
    assert estimate["high"] - estimate["low"] == pytest.approx(expected.high - expected.low, rel=0.05)


def test_sets_count_alike_in_their_average_whatever_their_size_and_seeds(published_rows):
    rows = chosen("diffclip-table-1", published_rows)["evaluate"]
    observed = observations(rows)
    estimates = estimated(with_average(observed))
    for task in ("probe", "few-shot"):
        scores = estimates.filter(task=task, pretraining="CC12M", series="CLIP")
        sets, mean = scores.filter(pl.col("data") != "Avg."), scores.filter(data="Avg.")
        assert len(sets) == len(PROBE_SETS)
        assert mean["value"].item() == pytest.approx(sets["value"].mean())
        assert mean["seeds"].item() == 2
    probes = rows.filter(task="probe", trained_on=CC12M, series="CLIP", data="cifar10")
    by_hand = probes.select((pl.col("rank") < 1).mean()).item()
    cell = estimates.filter(task="probe", pretraining="CC12M", series="CLIP", data="cifar10")
    assert cell["value"].item() == pytest.approx(by_hand)


def test_a_model_that_lacks_a_set_is_left_out_of_the_average(published_rows):
    rows = chosen("diffclip-table-2", published_rows)["evaluate"]
    lacks = (pl.col("data") == "flickr8k") & (pl.col("series") == "DiffCLIP") & (pl.col(SEED) == 1)
    mean = averaged(observations(rows.filter(~lacks)).filter(task="text retrieval"))
    for _, block in mean.group_by("pretraining"):
        kept = block.select("series", SEED).unique().sort("series", SEED).rows()
        assert kept == [("CLIP", 0), ("CLIP", 1), ("DiffCLIP", 0)]


def test_gains_pair_the_seeds_that_both_have(published_rows):
    rows = chosen("diffclip-table-2", published_rows)["evaluate"]
    mean = averaged(observations(rows).filter(pretraining="CC3M", task="text retrieval"))
    apart = mean.filter((pl.col("series") == "CLIP") == (pl.col(SEED) == 0))
    (none,) = gains(apart, ["text retrieval"])
    assert none.estimate is None
    (one,) = gains(mean.filter((pl.col("series") == "CLIP") | (pl.col(SEED) == 1)), ["text retrieval"])
    means = {name: mean.filter(pl.col(SEED) == 1, series=name)["value"].mean() for name in ("CLIP", "DiffCLIP")}
    assert one.estimate.value == pytest.approx(means["DiffCLIP"] - means["CLIP"])


def test_the_vision_only_variant_is_held_against_the_middle(published_rows):
    rows = chosen("diffclip-figure-5", published_rows)
    (claim,) = [one for one in STUDIES["diffclip-figure-5"].claims(rows) if one.name == "vision-only-keeps-most"]
    estimates = estimated(six_tasks(rows["evaluate"]))
    mean = {name: estimates.filter(series=name)["value"].mean() for name in ("CLIP", "DiffCLIP", "DiffCLIP†")}
    assert claim.checks[0].estimate.value == pytest.approx(mean["DiffCLIP†"] - (mean["CLIP"] + mean["DiffCLIP"]) / 2)


def test_a_set_with_nothing_to_draw_has_no_spread_over_seeds_of_the_evaluation(published_rows):
    rows = chosen("diffclip-table-4", published_rows)["evaluate"]
    spreads = spread(observations(rows).filter(series="CLIP", pretraining="CC3M"))
    drawn = spreads.filter(over="over evaluation seeds")["data"].to_list()
    assert drawn == [name for name in PROBE_SETS if name not in ("dtd", "aircraft", "flowers102")] + ["Avg."]
    assert spreads.filter(over="over training seeds")["data"].to_list() == [*PROBE_SETS, "Avg."]
