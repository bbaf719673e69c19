"""The words must not say more than the intervals."""

import json
import re

import polars as pl
import pytest

from antiphase.evaluation.rates import ROW_SCHEMA
from antiphase.report.page import TITLE
from tests.commands.audits import audited

N = 200
TWO = [("diff", "differential", None, 1.0), ("vit", "softmax", None, 1.0)]


def budget(headline):
    return headline.title.rpartition("at ε = ")[2]


def drawn(headline):
    """The lines of the figure next to the title: all labels and numbers, and those in bold."""
    axes = headline.plot().figure.axes[0]
    numbers = [text for text in axes.texts if text.get_text().strip()]
    bold = [text.get_text() for text in numbers if text.get_weight() == "bold"]
    return [label.get_text() for label in axes.get_yticklabels()], [text.get_text() for text in numbers], bold


def rows_of(flips: dict[str, list[int]]) -> pl.DataFrame:
    """For each model how many of the images fall at each ε; the same ones first."""
    rows = []
    for name, attention, _, _ in TWO:
        for place, count in enumerate(flips[name]):
            for sample in range(N):
                fell = sample < count
                verdict = (sample, 0, 0, int(fell), fell)
                rows.append((name, attention, None, "pgd", "linf", (1 + place) / 255, *verdict, None, 0.0, 1, 1, 0))
    return pl.DataFrame(rows, schema=ROW_SCHEMA, orient="row")


@pytest.mark.parametrize(
    ("diff", "vit", "expected"),
    [
        ([60, 90, 120], [20, 40, 60], "diff is broken more often than vit: +25.0 points ["),
        ([20, 40, 60], [60, 90, 120], "diff is broken less often than vit: −25.0 points ["),
        ([60, 40, 61], [20, 40, 60], "diff is broken more often than vit: +20.0 points ["),
        ([20, 40, 61], [20, 41, 60], "No difference shown between diff and vit: −0.5 points ["),
        (
            [60, 40, 60],
            [20, 40, 120],
            "diff is broken more often than vit at 1 of 3 ε, less at 1: +20.0 points at ε = 1/255",
        ),
        ([60], [20], "diff is broken more often than vit: +20.0 points ["),
        ([20], [20], "No difference shown between diff and vit: 0.0 points ["),
    ],
)
def test_title_says_what_the_intervals_say(tmp_path, make_run, diff, vit, expected):
    run = make_run(tmp_path, TWO, [("diff", "vit")], rows=rows_of({"diff": diff, "vit": vit}))
    (headline,) = audited(run).headlines()
    assert headline.title.startswith(expected)
    assert len(headline.title) <= TITLE
    assert headline.line == f"{headline.title} (200 images, L∞ PGD-20)"


def test_the_number_of_the_title_is_drawn_in_bold_among_those_of_all_eps(tmp_path, make_run):
    rows = rows_of({"diff": [60, 90, 120], "vit": [20, 41, 60]})
    (headline,) = audited(make_run(tmp_path, TWO, [("diff", "vit")], rows=rows)).headlines()
    labels, numbers, bold = drawn(headline)
    assert labels == ["ε = 1/255", "ε = 2/255", "ε = 3/255"]
    assert [number.partition(" ")[0] for number in numbers] == ["+20.0", "+24.5", "+30.0"]
    assert [number.replace(" [", " points [") for number in bold] == [headline.title.split(": ")[1].split(" at")[0]]


def test_accuracy_is_drawn_against_chance_where_the_number_of_classes_is_known(tmp_path, make_run):
    run = make_run(tmp_path, TWO, [("diff", "vit")], rows=rows_of({"diff": [60], "vit": [20]}))
    for classes, levels in ((None, []), (4, [25.0])):
        summary = json.loads((run / "summary.json").read_text())
        for model in summary["models"] if classes else ():
            model["num_classes"] = classes
        (run / "summary.json").write_text(json.dumps(summary))
        axes = audited(run).headlines()[0].plot().figure.axes[1]
        assert [
            line.get_xdata()[0] for line in axes.lines if len(set(line.get_xdata())) == 1 < len(line.get_xdata())
        ] == levels
        assert axes.get_title(loc="left") == "Accuracy without an attack, %"


def test_a_title_has_at_most_90_characters_whatever_the_names(tmp_path, make_run):
    long = ("runs/" + "differential-" * 9 + "7", "/home/someone/models/" + "standard-" * 9 + "3")
    models = [(long[0], "differential", None, 1.0), (long[1], "softmax", None, 1.0)]
    rows = rows_of({"diff": [60, 40, 60], "vit": [20, 40, 120]})
    rows = rows.with_columns(pl.col("model").replace({"diff": long[0], "vit": long[1]}))
    (headline,) = audited(make_run(tmp_path, models, [long], rows=rows)).headlines()
    assert len(headline.title) <= TITLE
    assert "…" in headline.title


def test_title_and_large_numbers_are_of_one_eps_at_which_the_title_is_true(tmp_path, make_run):
    """Equal rates at the middle ε next to “breaks more often” contradicted it."""
    flips = {"diff": [20, 56, 90, 130], "vit": [20, 56, 60, 80]}
    stored = audited(make_run(tmp_path, TWO, [("diff", "vit")], rows=rows_of(flips)))
    (headline,) = stored.headlines()
    assert headline.title.startswith("diff is broken more often than vit: +15.0 points")
    assert budget(headline) == "3/255"
    assert "45.0 % of the predictions of diff and 30.0 % of vit" in headline.lead
    assert "lies above zero at 2 of 4 ε (3/255, 4/255)" in headline.lead


def test_every_attack_of_the_page_is_read(tmp_path, make_run):
    pgd = rows_of({"diff": [20, 40], "vit": [20, 40]})
    square = rows_of({"diff": [20, 40], "vit": [60, 40]}).with_columns(attack=pl.lit("square"))
    run = make_run(tmp_path, TWO, [("diff", "vit")], rows=pl.concat([pgd, square]))
    (headline,) = audited(run).headlines()
    assert "Under PGD (L∞) the difference is undecided at all 2 ε." in headline.lead
    assert "Under Square (L∞) the difference lies below zero at 1 of 2 ε" in headline.lead


def test_rates_of_a_family_are_of_the_models_that_were_paired(tmp_path, make_run, make_rows):
    models = [("d-0", "differential", 0, 2.0), ("d-1", "differential", 1, 2.2), ("e-2", "differential", 2, 1.0)]
    models += [(f"v-{seed}", "softmax", seed, 1.0 + seed) for seed in range(3)]
    pairs = [("d-0", "v-0"), ("d-1", "v-1"), ("e-2", "v-2")]
    stored = audited(make_run(tmp_path, models, pairs, rows=make_rows(models)))
    headline = stored.headlines()[0]
    first, second = map(float, re.findall(r"([\d.]+) %", headline.lead))
    assert f"{first - second:+.1f}".replace("-", "−") in headline.title


def test_lead_has_the_rates_and_p(tmp_path, make_run):
    run = make_run(tmp_path, TWO, [("diff", "vit")], rows=rows_of({"diff": [60, 90, 120], "vit": [20, 41, 60]}))
    stored = audited(run)
    (headline,) = stored.headlines()
    middle = stored.comparisons.row(1, named=True)
    assert budget(headline) == "2/255"
    assert "45.0 % of the predictions of diff and 20.5 % of vit " in headline.lead
    assert f"+24.5 points [{100 * middle['low']:.1f}, {100 * middle['high']:.1f}]" in headline.title
    assert "p < 0.0001" in headline.lead


def seeds_run(tmp_path, make_run, make_rows, count, fragility=2.0):
    """Pairs of training seeds, of which all differ alike."""
    models = [
        (f"{stem}-{seed}", attention, seed, times * (1 + 0.02 * seed))
        for stem, attention, times in (("diffvit", "differential", fragility), ("vit", "softmax", 1.0))
        for seed in range(count)
    ]
    pairs = [(f"diffvit-{seed}", f"vit-{seed}") for seed in range(count)]
    rows = make_rows(models, eps=[k / 255 for k in (0.5, 1, 2)], n=60)
    return audited(make_run(tmp_path / str(count), models, pairs, rows=rows))


def test_pairs_of_seeds_are_averaged(tmp_path, make_run, make_rows):
    stored = seeds_run(tmp_path, make_run, make_rows, 8)
    (headline,) = stored.headlines()
    mean = stored.mean_comparisons.row(1, named=True)
    assert stored.mean_comparisons["decided"].to_list() == [1, 1, 1]
    assert headline.title.startswith(f"diffvit is broken more often than vit: {100 * mean['difference']:+.1f} points [")
    assert headline.line.endswith("at ε = 1/255 (8 seeds, 60 images, L∞ PGD-20)")
    dots = [line for line in headline.plot().figure.axes[0].lines if line.get_marker() == "o"]
    assert [len(line.get_xdata()) for line in dots] == [8, 8, 8]
    assert "Student’s t" in headline.lead


@pytest.mark.parametrize("count", [2, 3, 7])
def test_fewer_than_eight_seeds_decide_nothing(tmp_path, make_run, make_rows, count):
    stored = seeds_run(tmp_path, make_run, make_rows, count, fragility=8.0)
    (headline,) = stored.headlines()
    assert stored.mean_comparisons["low"].max() > 0
    assert headline.line.startswith("Undecided between diffvit and vit: +")
    assert f"({count} seeds" in headline.line
    assert "Fewer than 8 training seeds decide nothing. Under PGD (L∞) the difference is undecided at all 3 ε" in (
        headline.lead
    )


@pytest.mark.parametrize(
    ("diff", "vit", "answer"),
    [
        ([5], [0], "No difference shown"),  # p = 0.062, and Newcombe's interval excludes 0
        ([6], [0], "diff is broken more often"),  # p = 0.031
        ([5, 6, 5], [0, 0, 0], "No difference shown"),  # p = 0.031 at one of three
        ([5, 8, 5], [0, 0, 0], "diff is broken more often"),  # p = 0.0078
        ([0, 0, 0], [6, 6, 6], "No difference shown"),  # p = 0.031 at each: Holm asks for 0.017 of one
    ],
)
def test_title_and_corrected_p_agree(tmp_path, make_run, diff, vit, answer):
    rows = rows_of({"diff": diff, "vit": vit}).filter(pl.col("sample") < 24)
    stored = audited(make_run(tmp_path, TWO, [("diff", "vit")], rows=rows))
    (headline,) = stored.headlines()
    assert headline.title.startswith(answer)
    (sheet,) = stored.difference_tables()
    decided = [cell.kind != "undecided" for cell in sheet.rows[0][1:]]
    assert any(decided) == answer.startswith("diff")
    assert stored.comparisons.filter(pl.col("decided") != 0)["p_value"].max() in (None, 0.03125, 0.0078125)


def test_an_interval_of_no_width_is_not_printed(tmp_path, make_run, make_rows):
    """At ε = 1 every image of every seed is broken; with one image no interval is there over images either."""
    models = [
        (f"{stem}-{seed}", kind, seed, 9.0)
        for stem, kind in (("d", "differential"), ("v", "softmax"))
        for seed in range(2)
    ]
    rows = make_rows(models, eps=(1.0,), n=1)
    stored = audited(make_run(tmp_path, models, [("d-0", "v-0"), ("d-1", "v-1")], rows=rows))
    (headline,) = stored.headlines()
    assert "0.0 points (no interval) at ε = 1 (" in headline.line
    assert "it is 0.0 points (no interval)" in headline.lead


def test_a_model_alone_claims_nothing_about_attention(alone):
    (headline,) = audited(alone).headlines()
    assert headline.title.startswith("PGD (L∞) changes ")
    assert "compares no two models" in headline.lead


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"pgd": {"steps": 7, "restarts": 1}}, "L∞ PGD-7"),
        ({"pgd": {"restarts": 1}}, "L∞ PGD"),
        ({"steps": 20}, "L∞ PGD-20"),
        ({}, "L∞ PGD"),
    ],
)
def test_the_steps_come_from_the_stored_settings(tmp_path, make_run, settings, name):
    rows = rows_of({"diff": [60], "vit": [20]})
    run = make_run(tmp_path, TWO, [("diff", "vit")], rows=rows, settings=settings)
    (headline,) = audited(run).headlines()
    assert headline.line.endswith(f"(200 images, {name})")
