"""Verdicts: the rule, its error rates by simulation, and the seeds that a verdict takes."""

import math

import numpy as np
import polars as pl
import pytest

from antiphase.errors import UserError
from antiphase.statistics.intervals import Estimate
from antiphase.statistics.seeds_by_images import CrossedEstimate, Spread, crossed_mean
from antiphase.studies.claims import LEAST_SEEDS, MARGINS, Check, Claim, no_worse, on_average
from antiphase.studies.report.words import estimate_text


def check(value, error, seeds=16, unit="points", **fields):
    half = 2.1314 * error  # Student's t at 15 degrees of freedom
    return Check(
        "a − b",
        CrossedEstimate(value, value - half, value + half, 1000, Spread(seeds, 1000, error**2, 0.0, 0.0)),
        unit,
        **fields,
    )


def claim(*checks, **fields):
    return Claim("name", "source", "statement", checks, **fields)


def test_each_verdict():
    assert claim(check(0.03, 0.01)).verdict == "holds"
    assert claim(check(-0.03, 0.01)).verdict == "contradicted"
    assert claim(check(0.0, 0.005)).verdict == "absent"
    assert claim(check(0.03, 0.02)).verdict == "undecided"
    assert claim(Check("a − b", None)).verdict == claim().verdict == "not run"
    assert claim(check(0.03, 0.01, judged=False)).verdict == "not judged (smoke)"


def test_a_claim_with_an_effect_in_the_paper_is_compared_with_it_and_not_with_a_margin():
    effect = {"effects": (0.01,), "margin": 0.02}
    assert claim(check(0.009, 0.002), **effect).verdict == "holds"
    assert claim(check(0.003, 0.001), **effect).verdict == "smaller than claimed"  # though above 0
    assert claim(check(0.001, 0.002), **effect).verdict == "smaller than claimed"
    assert claim(check(0.0, 0.006), **effect).verdict == "undecided"  # within the margin, but the effect is, too
    assert claim(check(-0.01, 0.001), **effect).verdict == "contradicted"
    assert claim(check(0.1, 0.01), check(0.001, 0.002), **effect).verdict == "smaller than claimed"
    result = claim(*[check(0.009, 0.002), check(0.003, 0.001), check(0.0, 0.006)] * 2, effects=(0.01, 0.02, math.nan))
    assert result.verdicts == ["holds", "smaller than claimed", "absent"] * 2  # for each its own, and none for the last


def test_checks_beside_the_others_are_shown_and_decide_nothing():
    no = check(-0.1, 0.01, decides=False)
    one = claim(check(0.0225, 0.01), no, no)
    assert (one.verdict, one.verdicts) == ("holds", ["holds", "beside", "beside"])
    barely = check(-0.0225, 0.01)  # p = .02 of .025: Holm counts what decides alone
    assert claim(barely, no).verdict == "contradicted"
    few = check(0.0, 0.01, seeds=2, decides=False)
    assert not claim(check(0.1, 0.01), few).lacks_seeds


def test_mean_over_eps_weighs_every_budget_alike_and_every_budget_stands_beside_it():
    draw, rows = np.random.default_rng(0), []
    for series, level in (("ViT", 0.2), ("DiffViT", 0.3)):
        for seed in range(8):
            for eps in (0.5, 1.0, 2.0):
                hits = draw.random(40) < level * eps
                rows += [
                    (series, seed, eps / 255, image, bool(hit), f"{series}{seed}") for image, hit in enumerate(hits)
                ]
    names = ["series", "training_seed", "eps", "sample", "success", "cell"]
    frame = pl.DataFrame(rows, names, orient="row")
    mean, *checks = on_average(frame, "DiffViT", than="ViT", eps=[0.5 / 255, 1 / 255, 2 / 255])
    assert [one.decides for one in (mean, *checks)] == [True, False, False, False]
    assert mean.estimate.value == pytest.approx(np.mean([one.estimate.value for one in checks]))
    (alone, _) = on_average(frame, "DiffViT", than="ViT", eps=[1 / 255])  # what is not asked for has no part
    assert alone.estimate.value == pytest.approx(checks[1].estimate.value)


def test_what_is_off_zero_within_the_margin_is_no_absence():
    assert claim(check(0.01, 0.002)).verdict == "holds"
    assert claim(check(-0.01, 0.002)).verdict == "contradicted"


def test_several_checks_hold_together_or_not_at_all():
    yes, none, open_, no = check(0.1, 0.01), check(0.0, 0.005), check(0.0, 0.05), check(-0.1, 0.01)
    assert claim(yes, yes).verdict == "holds"
    assert claim(yes, none).verdict == claim(none, none).verdict == "absent"
    assert claim(yes, open_, none).verdict == "undecided"
    assert claim(yes, none, open_, no).verdict == "contradicted"
    assert claim(no, Check("", None)).verdict == "not run"


def test_the_opposite_is_corrected_for_the_number_of_checks():
    barely = check(-0.0225, 0.01)  # p = .02 of .025
    open_ = check(0.0, 0.05)
    assert claim(barely).verdict == "contradicted"
    assert claim(barely, open_).verdict == "undecided"
    assert claim(barely, check(-0.05, 0.01)).verdicts == ["contradicted", "contradicted"]  # Holm, not Bonferroni


@pytest.mark.parametrize("estimate", [check(0.1, 0.01, seeds=LEAST_SEEDS - 1).estimate, Estimate(0.1, 0.05, 0.15, 9)])
def test_few_or_unknown_seeds_decide_nothing(estimate):
    assert claim(Check("a − b", estimate)).verdict == "undecided"


def test_models_that_were_not_trained_here_are_judged_over_images():
    one = crossed_mean(np.full((1, 400), 0.1) + np.random.default_rng(0).normal(size=(1, 400)) / 10)
    assert claim(Check("a − b", one)).verdict == "undecided"
    released = claim(Check("a − b", one, over="images"))
    assert released.verdict == "holds"
    assert released.seeds_needed is None


def test_the_margin_is_that_of_the_unit_or_of_the_claim():
    small = check(0.0, 0.004)
    assert MARGINS == {"points": 0.02, "": None}
    assert claim(small).verdict == "absent"
    assert claim(small, margin=0.005).verdict == "undecided"
    plain = check(0.0, 0.004, unit="")
    assert claim(plain).verdict == "undecided"
    assert claim(plain, margin=0.02).verdict == "absent"


@pytest.mark.parametrize("margin", ["two", -0.01, -1, float("nan"), float("inf"), True])
def test_a_margin_that_is_no_number_is_refused(margin):
    with pytest.raises(UserError, match=r"claim 'name': margin .*: expected a number of at least 0"):
        claim(check(0.1, 0.01), margin=margin)


def test_with_a_margin_of_0_no_difference_is_absent():
    assert claim(check(0.0, 0.005)).verdict == "absent"
    assert claim(check(0.0, 0.005), margin=0.0).verdict == "undecided"


def test_checks_that_need_not_hold_make_the_others_stricter():
    clear, barely, not_ = check(0.1, 0.01), check(0.0225, 0.01), check(0.0, 0.05)  # barely: p = .02 of .025
    assert claim(clear, barely).verdict == "holds"
    assert claim(clear, clear, not_, exceptions=1).verdict == "holds"
    assert claim(clear, barely, not_, exceptions=1).verdict == "undecided"
    within = check(0.0045, 0.002)  # p = .0125 to .025: above 0, and too small to matter
    assert claim(within).verdict == "holds"
    assert claim(clear, within, not_, exceptions=1).verdicts[1] == "undecided"


def estimates(generator, means, seeds=10, samples=80):
    """Return checks of independent differences with the given true means."""
    return [
        Check(
            "a − b",
            crossed_mean(
                mean
                + generator.normal(size=(seeds, 1)) * 0.05
                + generator.normal(size=(1, samples)) * 0.1
                + generator.normal(size=(seeds, samples)) * 0.2
            ),
        )
        for mean in means
    ]


@pytest.mark.parametrize(
    ("means", "wrong"),
    [
        ((0.0, 0.2), "holds"),  # one of them is not above 0
        ((0.0, 0.0), "contradicted"),  # none of them is below 0
        ((0.02,), "absent"),  # at the margin, the least difference that matters
    ],
)
def test_wrong_verdicts_are_as_rare_as_promised(means, wrong):
    generator = np.random.default_rng(3)
    rounds = 800
    margin = {} if wrong != "absent" else {"margin": 0.02}
    verdicts = [claim(*estimates(generator, means), **margin).verdict for _ in range(rounds)]
    # at most 2.5 %, and three binomial standard deviations
    assert verdicts.count(wrong) / rounds <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / rounds)


def test_a_claim_with_an_exception_holds_by_chance_as_rarely_as_promised():
    generator = np.random.default_rng(5)
    rounds = 800
    # of four checks three have to be above 0; two are not
    verdicts = [claim(*estimates(generator, (0.3, 0.3, 0.0, 0.0)), exceptions=1).verdict for _ in range(rounds)]
    assert verdicts.count("holds") / rounds <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / rounds)


def test_the_seeds_it_takes_are_those_of_the_slowest_check():
    slow, fast = check(0.02, 0.02), check(0.05, 0.02)
    needed = [claim(single_check).seeds_needed for single_check in (slow, fast)]
    assert needed[1] < needed[0]
    assert claim(slow, fast).seeds_needed == needed[0]
    contradicted = claim(slow, check(-0.05, 0.02)).seeds_needed  # one is enough, corrected for two
    assert needed[1] < contradicted < needed[0]
    assert claim(check(0.05, 0.001)).seeds_needed == LEAST_SEEDS


def test_the_seeds_it_takes_may_end_in_absence_or_nowhere():
    nothing = check(0.0, 0.02)
    assert claim(nothing).seeds_needed > 16
    assert claim(nothing, margin=0.0005).seeds_needed is None
    assert claim(Check("a − b", Estimate(0.1, -0.1, 0.3, 9))).seeds_needed is None


@pytest.mark.parametrize(("means", "verdict"), [((0.04,), "holds"), ((-0.04, 0.3, 0.3), "contradicted")])
def test_that_many_seeds_decide_in_80_percent(means, verdict):
    rest = 0.2**2 / (4 * 80)
    spread = Spread(4, 80, 0.05**2 / 4 + rest, 0.1**2 / 80 + rest, rest)  # what ``estimates`` draws from
    planned = claim(*(Check("a − b", CrossedEstimate(mean, -0.1, 0.2, 80, spread)) for mean in means))
    seeds = planned.seeds_needed
    generator = np.random.default_rng(4)
    rounds = 800
    verdicts = [claim(*estimates(generator, means, seeds)).verdict for _ in range(rounds)]
    assert 0.76 <= verdicts.count(verdict) / rounds <= 0.88  # the next whole number of seeds has a little more


def test_what_is_no_worse_is_shown_as_it_is_and_judged_against_the_margin():
    same, lower, unclear = (no_worse(check(value, 0.001), 0.005) for value in (0.0, -0.02, -0.0045))
    assert [claim(one).verdict for one in (same, lower, unclear)] == ["holds", "contradicted", "absent"]
    assert same.estimate.value == 0.0
    assert estimate_text(same) == "0.0 points [−0.2, 0.2], above −0.5"
    assert same.what.endswith(", above −0.5 points")
    assert claim(unclear).seeds_needed is not None
