"""The words must not say more than the intervals."""

import polars as pl
import pytest

from antiphase.evaluation.rates import ROW_SCHEMA
from antiphase.report.headline import headlines
from antiphase.report.stored import read_run

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
        ([60, 90, 120], [20, 40, 60], "diff breaks more often than vit at every ε tried"),
        ([20, 40, 60], [60, 90, 120], "diff breaks less often than vit at every ε tried"),
        (
            [60, 90, 61],
            [20, 40, 60],
            "diff breaks more often than vit at 2 of 3 ε; at the others the interval includes",
        ),
        ([20, 40, 61], [20, 41, 60], "diff and vit cannot be told apart at any ε tried"),
        ([60, 40, 60], [20, 40, 120], "diff breaks more often than vit at 1 of 3 ε, less often at 1"),
        ([60], [20], "diff breaks more often than vit at ε = 1/255"),
        ([20], [20], "diff and vit cannot be told apart at ε = 1/255"),
    ],
)
def test_title_says_what_the_intervals_say(tmp_path, make_run, diff, vit, expected):
    run = make_run(tmp_path, TWO, [("diff", "vit")], rows=rows_of({"diff": diff, "vit": vit}))
    (headline,) = headlines(read_run(run))
    assert headline.title.startswith(expected)


def test_lead_quotes_the_middle_eps_with_interval_and_p(tmp_path, make_run):
    run = make_run(
        tmp_path, TWO, [("diff", "vit")], rows=rows_of({"diff": [60, 90, 120], "vit": [20, 41, 60]})
    )
    stored = read_run(run)
    (headline,) = headlines(stored)
    middle = stored.comparisons.row(1, named=True)
    assert headline.eps == "2/255"
    assert "ε = 2/255, the middle of the 3" in headline.lead
    assert "45.0% of 200 predictions of diff and 20.5% of vit’s" in headline.lead
    assert (
        f"+24.5 points (95% interval +{100 * middle['low']:.1f} to +{100 * middle['high']:.1f}"
        in headline.lead
    )
    assert "p < 0.0001" in headline.lead
    assert [rate.percent for rate in headline.rates] == ["45.0", "20.5"]


def test_pairs_of_seeds_are_averaged(seeds):
    stored = read_run(seeds)
    (headline,) = headlines(stored)
    mean = stored.mean_comparisons.row(2, named=True)
    assert headline.title == "diffvit breaks more often than vit at every ε tried"
    assert f"{100 * mean['value']:+.1f} points over 3 pairs of training seeds" in headline.lead
    assert "Student’s t" in headline.lead


def test_a_model_alone_claims_nothing_about_attention(alone):
    (headline,) = headlines(read_run(alone))
    assert headline.title.startswith("PGD (L∞) changes ")
    assert "No two models were compared" in headline.lead
