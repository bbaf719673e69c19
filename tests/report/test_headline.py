"""The words must not say more than the intervals."""

import polars as pl
import pytest

from antiphase.evaluation.rates import ROW_SCHEMA
from antiphase.report.runs.headline import headlines
from antiphase.report.runs.stored import read_run

N = 200
TWO = [("diff", "differential", None, 1.0), ("vit", "softmax", None, 1.0)]


def rows_of(flips: dict[str, list[int]]) -> pl.DataFrame:
    """For each model how many of the images fall at each ε; the same ones first."""
    rows = []
    for name, attention, _, _ in TWO:
        for place, count in enumerate(flips[name]):
            for sample in range(N):
                fell = sample < count
                verdict = (sample, 0, 0, int(fell), fell)
                rows.append(
                    (name, attention, None, "pgd", "linf", (1 + place) / 255, *verdict, None, 0.0, 1, 1, 0)
                )
    return pl.DataFrame(rows, schema=ROW_SCHEMA, orient="row")


@pytest.mark.parametrize(
    ("diff", "vit", "expected"),
    [
        (
            [60, 90, 120],
            [20, 40, 60],
            "diff is broken more often than vit: +25.0 points [",
        ),
        (
            [20, 40, 60],
            [60, 90, 120],
            "diff is broken less often than vit: −25.0 points [",
        ),
        (
            [60, 40, 61],
            [20, 40, 60],
            "diff is broken more often than vit: +20.0 points [",
        ),
        ([20, 40, 61], [20, 41, 60], "No difference shown between diff and vit: −0.5 points ["),
        (
            [60, 40, 60],
            [20, 40, 120],
            "diff is broken more often than vit at 1 of 3 ε, less often at 1: +20.0 points [",
        ),
        ([60], [20], "diff is broken more often than vit: +20.0 points ["),
        ([20], [20], "No difference shown between diff and vit: 0.0 points ["),
    ],
)
def test_title_says_what_the_intervals_say(tmp_path, make_run, diff, vit, expected):
    run = make_run(tmp_path, TWO, [("diff", "vit")], rows=rows_of({"diff": diff, "vit": vit}))
    (headline,) = headlines(read_run(run))
    assert headline.title.startswith(expected)
    assert headline.title.endswith(f"at ε = {headline.eps} (200 images, L∞ PGD-20)")


def test_title_and_large_numbers_are_of_one_eps_at_which_the_title_is_true(tmp_path, make_run):
    """Equal rates at the middle ε next to “breaks more often” contradicted it."""
    flips = {"diff": [20, 56, 90, 130], "vit": [20, 56, 60, 80]}
    stored = read_run(make_run(tmp_path, TWO, [("diff", "vit")], rows=rows_of(flips)))
    (headline,) = headlines(stored)
    assert headline.title.startswith("diff is broken more often than vit: +15.0 points")
    assert headline.eps == "3/255"
    assert [rate.percent for rate in headline.rates] == ["45.0", "30.0"]
    assert "lies above zero at 2 of 4 ε (3/255, 4/255)" in headline.lead


def test_every_attack_of_the_page_is_read(tmp_path, make_run):
    pgd = rows_of({"diff": [20, 40], "vit": [20, 40]})
    square = rows_of({"diff": [20, 40], "vit": [60, 40]}).with_columns(attack=pl.lit("square"))
    run = make_run(tmp_path, TWO, [("diff", "vit")], rows=pl.concat([pgd, square]))
    (headline,) = headlines(read_run(run))
    assert "Under PGD (L∞) the 95 % interval of the difference includes zero at all 2 ε." in headline.lead
    assert (
        "Under Square (L∞) the 95 % interval of the difference lies below zero at 1 of 2 ε" in headline.lead
    )


def test_rates_of_a_family_are_of_the_models_that_were_paired(tmp_path, make_run, make_rows):
    models = [
        ("d-0", "differential", 0, 2.0),
        ("d-1", "differential", 1, 2.2),
        ("e-2", "differential", 2, 1.0),
    ]
    models += [(f"v-{seed}", "softmax", seed, 1.0 + seed) for seed in range(3)]
    pairs = [("d-0", "v-0"), ("d-1", "v-1"), ("e-2", "v-2")]
    stored = read_run(make_run(tmp_path, models, pairs, rows=make_rows(models)))
    headline = headlines(stored)[0]
    first, second = (float(rate.percent) for rate in headline.rates)
    assert f"{first - second:+.1f}".replace("-", "−") in headline.title


def test_lead_has_the_rates_and_p(tmp_path, make_run):
    run = make_run(
        tmp_path, TWO, [("diff", "vit")], rows=rows_of({"diff": [60, 90, 120], "vit": [20, 41, 60]})
    )
    stored = read_run(run)
    (headline,) = headlines(stored)
    middle = stored.comparisons.row(1, named=True)
    assert headline.eps == "2/255"
    assert "45.0 % of the predictions of diff and 20.5 % of vit " in headline.lead
    assert f"+24.5 points [{100 * middle['low']:.1f}, {100 * middle['high']:.1f}]" in headline.title
    assert "p < 0.0001" in headline.lead
    assert [rate.percent for rate in headline.rates] == ["45.0", "20.5"]


def test_pairs_of_seeds_are_averaged(seeds):
    stored = read_run(seeds)
    (headline,) = headlines(stored)
    mean = stored.mean_comparisons.row(2, named=True)
    assert headline.title.startswith(
        f"diffvit is broken more often than vit: {100 * mean['value']:+.1f} points ["
    )
    assert headline.title.endswith("at ε = 2/255 (3 seeds, 300 images, L∞ PGD-20)")
    assert "Student’s t" in headline.lead


def test_a_model_alone_claims_nothing_about_attention(alone):
    (headline,) = headlines(read_run(alone))
    assert headline.title.startswith("PGD (L∞) changes ")
    assert "compares no two models" in headline.lead


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"pgd": {"steps": 7, "restarts": 1}}, "L∞ PGD-7"),
        ({"pgd": {"restarts": 1}}, "L∞ PGD"),
        ({"pgd": "steps 7, step_size ε/4, restarts 1"}, "L∞ PGD-7"),  # a run stored before November 2026
        ({"steps": 20}, "L∞ PGD-20"),
        ({}, "L∞ PGD"),
    ],
)
def test_the_steps_come_from_the_stored_settings(tmp_path, make_run, settings, name):
    rows = rows_of({"diff": [60], "vit": [20]})
    run = make_run(tmp_path, TWO, [("diff", "vit")], rows=rows, settings=settings)
    (headline,) = headlines(read_run(run))
    assert headline.title.endswith(f"(200 images, {name})")
