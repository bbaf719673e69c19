"""The pages of a sensitivity run, from its directory alone: tables, figures, headline."""

import json
import math
import re
from io import StringIO

import polars as pl
import pytest
from rich.console import Console

from antiphase.commands.lineup import Lineup
from antiphase.commands.result import read_result
from antiphase.commands.sense import SenseOptions
from antiphase.commands.sense import run as sense
from antiphase.commands.sense.result import differences_of, headline, plane_figure
from antiphase.data import load_data
from antiphase.errors import UserError
from antiphase.models import diffvit, load_model, vit
from antiphase.models.checkpoints import save
from antiphase.models.vit import initialise
from antiphase.report.figure import Axis, Family, layer_figure, with_means
from antiphase.sensitivity import critical_cosine
from antiphase.sensitivity.layer_estimates import places
from antiphase.statistics.intervals import as_size
from tests.commands.audits import attack_options, audit, report

QUICK = {"probes": 3, "samples": 3, "steps": 1, "points": 1, "eps": (4 / 255,), "lipschitz_limit": 2}
PARTS = ("alignment", "lipschitz", "depth")


def sense_all(models, twins, data, out, parts=PARTS):
    options = SenseOptions.from_file(QUICK, model=("m",), parts=tuple(parts), out=out, quiet=True)
    return sense.run(options, "antiphase sense", Lineup(models, twins, data))


def page_of(out):
    return read_result(out, "sense").write_report(out).read_text(encoding="utf-8")


def alignment_tables(out):
    return [table for table in read_result(out, "sense").all_tables() if table.name.startswith("alignment-")]


@pytest.fixture(scope="module")
def lineup(tmp_path_factory):
    """A DiffViT of one layer, two seeds of one of two layers, and their twins; untrained."""
    directory = tmp_path_factory.mktemp("lineup")
    models = {}
    for kind in (diffvit, vit):
        for depth, seed in ((1, 0), (2, 0), (2, 1)):
            model = kind(8, depth=depth, dim=16, num_heads=2)
            name = f"{kind.__name__}-d{depth}-{seed}"
            recipe = {"model": model.config.model_dump(mode="json"), "seed": seed, "data": "digits"}
            initialise(model, seed)
            save(model, recipe, directory / name)
            models[name] = load_model(str(directory / name))
    ours = [model for name, model in models.items() if name.startswith("diffvit")]
    twins = [model for name, model in models.items() if name.startswith("vit")]
    return ours, twins


@pytest.fixture(scope="module")
def run(lineup, tmp_path_factory):
    out, data = tmp_path_factory.mktemp("sense"), load_data("digits", limit=3)
    sense_all(*lineup, data, out)
    return out


@pytest.fixture(scope="module")
def page(run):
    return page_of(run)


def test_the_page_holds_every_part_and_every_layer(run, page):
    for title in ("Gradient alignment", "Local Lipschitz constants", "A perturbation’s way through the depth"):
        assert title in page
    assert len(re.findall(r"<svg role=.img.", page)) == 6  # the answer, alignment, two planes, constants, depth
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert read_result(run, "sense").frame("alignment")["layer"].max() == 1
    assert page.count("data:text/csv") == 10
    assert page_of(run) == page  # the same files give the same bytes


def test_each_layer_has_its_place_in_the_plane_of_theorem_3(run, page):
    rows = read_result(run, "sense").frame("alignment")
    twins = {f"diffvit-d2-{seed}": f"vit-d2-{seed}" for seed in (0, 1)}
    points = places(rows, dict(twins))
    family = Family("diffvit-d2", "#D55E00", tuple(twins))
    figure = plane_figure(points, family)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["layer 1", "layer 2"]
    for layer, axes in enumerate(figure.axes):
        (edge, seeds, mean, _) = axes.lines
        part = points.filter(layer=layer)
        assert seeds.get_xdata().tolist() == part.filter(metric="rho")["value"].to_list()
        assert mean.get_ydata()[0] == pytest.approx(part.filter(metric="cosine")["value"].mean())
        gamma = part.filter(metric="gamma")["value"].log().mean()
        expected = critical_cosine(math.exp(gamma), 1.0, edge.get_xdata()).clip(-1, 1)
        assert edge.get_ydata() == pytest.approx(expected)
    assert page.count("in the (ρ, θ) plane of Theorem 3") == 2
    assert "No twin gives γ" not in page


def test_without_a_twin_the_picture_says_so(lineup, tmp_path):
    data = load_data("digits", limit=3)
    sense_all(lineup[0][:1], [], data, tmp_path, parts=("alignment",))
    assert "where ‖J_DA‖ &gt; ‖J1‖ (Theorem 1). No twin gives γ: γ = 1" in page_of(tmp_path)


def test_the_table_in_the_page_is_the_number_on_disk(run, page):
    summary = json.loads((run / "summary.json").read_text())
    first = next(e for e in summary["alignment"] if e["metric"] == "rho" and e["site"] == "tokens")
    rows = (
        read_result(run, "sense").frame("alignment").filter(model=first["model"], site="tokens", layer=first["layer"])
    )
    assert first["value"] == pytest.approx((rows["second"].sum() / rows["first"].sum()) ** 0.5)
    assert f"{first['value']:.3f}" in page


@pytest.mark.long
def test_an_audit_shows_how_the_gradients_lie(lineup, tmp_path):

    data = load_data("digits", limit=4)
    plan = attack_options((8 / 255,), settings={"steps": 2})
    audit(lineup[0][:1], [], data, plan, tmp_path, sense_limit=3)
    assert read_result(tmp_path, "audit").frame("alignment")["sample"].n_unique() == 3
    assert "Gradient alignment" in report(tmp_path).read_text(encoding="utf-8")
    audit(lineup[0][:1], [], data, plan, tmp_path)  # the same directory, without
    assert "Gradient alignment" not in report(tmp_path).read_text(encoding="utf-8")


def entry(metric, value, low, high, model="diffvit-0"):
    return {
        "model": model,
        "site": "pixels",
        "layer": 0,
        "metric": metric,
        "value": value,
        "low": low,
        "high": high,
        "n": 9,
    }


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-0.3, -0.1, "A1 and A2 have opposing gradients in diffvit-0: cosθ −0.20 [−0.30, −0.10]"),
        (0.1, 0.2, "A1 and A2 have similar gradients"),
        (-0.1, 0.1, "Undecided"),
    ],
)
def test_the_headline_follows_the_interval(low, high, words):
    alignment = [
        entry("cosine", (low + high) / 2, low, high),
        entry("below", 0.5, 0.4, 0.6),
        entry("rho", 1.0, 0.9, 1.1),
        entry("amplification", 1.3, 1.2, 1.4),
    ]
    models = [{"name": "diffvit-0", "attention": "differential", "seed": 0}]
    explained = [entry(name, 0.1, 0.0, 0.2) for name in ("relative", "by_gamma", "by_rho")] + [
        entry("by_cosine", 0.9, 0, 1)
    ]
    headlined = headline({"models": models, "alignment": alignment, "explanation": explained})
    assert words in headlined.title
    assert headlined.lead.endswith(
        "1.11 [1.00, 1.22] times as sensitive as that of the standard twin; the angle (cosθ) contributes most."
    )


def test_several_seeds_are_spoken_of_together():
    models = [{"name": f"diffvit-{seed}", "attention": "differential", "seed": seed} for seed in (0, 1, 2)]
    alignment = []
    for model, cosine in zip(models, (-0.5, -0.1, 0.2), strict=True):
        name = model["name"]
        alignment.append(entry("cosine", cosine, cosine - 0.01, cosine + 0.01, name))
        alignment += [entry(metric, 1.0, 0.9, 1.1, name) for metric in ("below", "rho", "amplification")]
    headlined = headline({"models": models, "alignment": alignment, "explanation": []})
    assert "Undecided" in headlined.title  # the seeds disagree, each with an interval off zero
    assert "mean of 3 seeds" in headlined.lead


def test_the_console_table_has_a_row_for_each_layer_and_site(run):
    # standard attention has no cosθ along the loss's gradient
    assert [len(table.rows) for table in alignment_tables(run)] == [10, 10, 5]


def test_the_console_tables_fit_80_characters_and_have_the_intervals_of_the_page(run):
    result = read_result(run, "sense")
    console = Console(width=80, file=StringIO())
    for part in result.console():
        console.print(part)
    shown = console.file.getvalue()
    assert "…" not in shown
    assert shown.startswith(result.headlines()[0].title[:40])
    for table in alignment_tables(run):
        for row in table.rows:
            for note in row[2].notes:
                assert note in shown


def test_words_on_two_maps_are_left_out_where_no_model_has_two(lineup, tmp_path):
    sense_all(lineup[1][:1], [], load_data("digits", limit=2), tmp_path, ("alignment",))
    page = page_of(tmp_path)
    assert "the Jacobian of the attention map" in page
    assert "Theorem" not in page
    assert "cosθ" not in page


@pytest.mark.long
def test_one_image_has_open_intervals_and_a_page(lineup, tmp_path):
    data = load_data("digits", limit=1)
    summary = sense_all(lineup[0][:1], lineup[1][:1], data, tmp_path)
    json.loads((tmp_path / "summary.json").read_text())
    first = next(row for row in summary["alignment"] if row["metric"] == "cosine")
    assert (first["low"], first["high"], first["n"]) == (None, None, 1)
    assert "∞" in page_of(tmp_path)
    assert sum(len(table.rows) for table in alignment_tables(tmp_path)) == 5


@pytest.mark.long
def test_standard_attention_alone_has_a_page_too(lineup, tmp_path):
    sense_all(lineup[1][:1], [], load_data("digits", limit=2), tmp_path)
    page = page_of(tmp_path)
    assert "Sensitivity of the attention of vit-d1-0" in page
    assert "along the loss" not in re.sub(r"<p>.*?</p>", "", page, flags=re.DOTALL)


def test_twins_of_other_depths_are_refused(lineup, tmp_path):
    data = load_data("digits", limit=1)
    with pytest.raises(UserError, match=r"has 1 attention layers, .* 2: expected as many in a twin"):
        sense_all(lineup[0][:1], lineup[1][1:2], data, tmp_path, parts=["alignment"])


def test_layer_figure_draws_a_panel_for_each_quantity_and_the_mean_of_a_family():
    families = [Family("one", "#D55E00", ("one",)), Family("two", "#0072B2", ("two-0", "two-1"))]
    frame = pl.DataFrame(
        {"model": ["one", "two-0", "two-1"], "layer": [0, 0, 0], "value": [3.0, 1.0, 2.0]}
    ).with_columns(low=pl.col("value") - 0.5, high=pl.col("value") + 0.5)
    frame = with_means(frame, families, ["layer"], as_size)
    figure = layer_figure([[Axis("a", frame), Axis("b", frame)], [Axis("c", frame)]], families)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["a", "b", "c"]
    for axes in figure.axes:
        values = [container.lines[0].get_ydata().tolist() for container in axes.containers]
        assert values == [[3.0], [1.5]]
        assert [line.get_ydata().tolist() for line in axes.lines if line.get_alpha()] == [[1.0], [2.0]]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two, mean of 2 seeds"]


@pytest.mark.parametrize(
    ("seeds", "answer"),
    [(1, "A1 and A2 have opposing gradients in "), (3, "Undecided"), (8, "A1 and A2 have opposing gradients")],
)
def test_fewer_than_eight_seeds_do_not_decide_the_title(seeds, answer):
    models = [{"name": f"d-{seed}", "attention": "differential", "seed": seed} for seed in range(seeds)]
    numbers = {"cosine": -0.5, "below": 0.9, "rho": 1.0, "amplification": 1.4}
    alignment = [
        {
            "model": f"d-{seed}",
            "layer": 0,
            "site": "pixels",
            "metric": metric,
            "value": value + seed / 1000,
            "low": value - 0.1,
            "high": value + 0.1,
            "n": 64,
        }
        for seed in range(seeds)
        for metric, value in numbers.items()
    ]
    headlined = headline({"models": models, "alignment": alignment, "explanation": []})
    assert headlined.title.startswith(answer)
    assert ("fewer than 8 decide nothing" in headlined.lead) == (seeds > 1)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_compared_by_the_mean_over_the_samples(run, part):
    rows, pair = read_result(run, "sense").frame(part), ("diffvit-d2-0", "diffvit-d2-1")
    differences = differences_of(part, rows, [pair])
    assert differences.select("model", "against").unique().rows() == [pair]
    assert differences.select("site", "layer", "metric").is_unique().all()
    if part == "lipschitz":
        row = differences.filter(pl.col("site").str.ends_with("map"), layer=1).row(0, named=True)
        place = (pl.col("layer") == 1, pl.col("estimator") == row["metric"])
        means = [rows.filter(*place, model=name)["value"].mean() for name in pair]
    elif part == "depth":
        row = differences.filter(pl.col("site").str.contains("pgd"), layer=0, metric="gain").row(0, named=True)
        means = [rows.filter(model=name, stage=1, perturbation="pgd")["gain"].mean() for name in pair]
    else:
        row = differences.filter(site="pixels", layer=0, metric="below").row(0, named=True)
        below = rows.filter(site="pixels", layer=0).with_columns(pl.col("cross") < 0)
        means = [below.filter(model=name)["cross"].mean() for name in pair]
    assert row["difference"] == pytest.approx(means[0] - means[1])
    assert row["n"] == (2 if part == "lipschitz" else 3)


@pytest.mark.long
def test_parts_of_an_earlier_run_are_not_drawn(lineup, tmp_path):
    (model, *_), data = lineup[0], load_data("digits", limit=2)
    for parts in (("alignment", "depth"), ("alignment",)):
        sense_all([model], [], data, tmp_path, parts=parts)
    assert "way through the depth" not in page_of(tmp_path)
    assert read_result(tmp_path, "sense").tables == ["alignment"]
