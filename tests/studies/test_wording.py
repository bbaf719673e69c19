"""Numbers, claims and settings as text."""

import math
from dataclasses import replace

import polars as pl
import pytest

from antiphase.report.words import number
from antiphase.statistics.intervals import Estimate
from antiphase.statistics.seeds_by_images import CrossedEstimate, Spread
from antiphase.studies.cells import TrainVit
from antiphase.studies.claims import NOT_IN_PAPER, Check, Claim, in_words, joint
from antiphase.studies.estimation import over
from antiphase.studies.pack import _rounded
from antiphase.studies.paper_settings import Line
from antiphase.studies.papers.declarations import listed
from antiphase.studies.report.figures import for_both_schemes, seeds_of, series_styles
from antiphase.studies.report.words import (
    bracketed,
    brief_numbers,
    estimate_text,
    estimates_line,
    price,
    signed,
    supported,
    tally,
    told_apart,
)
from antiphase.studies.scale import _range, _sets, titled, vits_in_short
from antiphase.studies.store import core_seconds


def check(label, value, half=0.02, seeds=16, error=0.01):
    spread = Spread(seeds, 300, error**2, 0.0, 0.0)
    return Check(label, CrossedEstimate(value, value - half, value + half, 300, spread))


def test_written_has_a_minus_sign_and_no_negative_zero():
    assert [number(value, 1) for value in (-0.04, -1.26, None, math.inf)] == ["0.0", "−1.3", "–", "∞"]
    assert number(2.41, 1, sign=True) == "+2.4"


def test_bracketed_is_empty_without_an_interval():
    ends = ((-1.0, 5.94), (None, None), (0.5, 0.5))
    assert [bracketed(*pair, 1) for pair in ends] == ["[−1.0, 5.9]", "", ""]


def test_supported_digits_follow_the_interval():
    triples = ((0.1234, 0.08, 0.16), (123.4, None, None), (3412.0, 3000.0, 3800.0))
    assert [supported(*triple) for triple in triples] == [3, 0, 0]


def test_signed_does_not_round_a_nonzero_end_to_zero():
    assert signed(Estimate(0.0241, 0.0003, 0.0594, 300), "points") == ("+2.41 points", "[0.03, 5.94]")
    assert signed(Estimate(0.0008, 0.0006, 0.0012, 300), "points") == ("+0.08 points", "[0.06, 0.12]")


def test_estimate_text_has_its_interval():
    assert estimate_text(Check("a − b", Estimate(0.0241, -0.0102, 0.0594, 300))) == "+2.4 points [−1.0, 5.9]"


def test_over_counts_seeds_and_samples():
    assert over(pl.DataFrame({"n": [300, 1000], "seeds": [3, 3]})) == "3 training seeds and 300 to 1,000 images"
    assert over(pl.DataFrame({"n": [2], "seeds": [1]}), samples="pairs") == "2 pairs, for one training seed"


def test_tally_counts_verdicts():
    checks = [Check("", None), Check("", Estimate(1.0, 0.5, 2.0, 9))]
    assert tally([Claim("", "", "", [one]) for one in checks]) == "too few seeds 1, not run 1"


def test_estimates_line_says_each_verdict_where_they_differ():
    rising = check("a − b at 1/255", 0.03)
    alike = Claim("", "", "", [rising, check("a − b at 2/255", 0.04)])
    assert estimates_line(alike) == "1/255: +3.0 points [1.0, 5.0]; 2/255: +4.0 [2.0, 6.0]"
    mixed = estimates_line(Claim("", "", "", [rising, check("a − b at 2/255", -0.04)]))
    assert mixed == "2/255: −4.0 points [−6.0, −2.0], contradicted; 1/255: +3.0 [1.0, 5.0], holds"


def test_estimates_line_gathers_checks_of_the_same_conditions_and_says_a_shared_unit_once():
    names = ("mean over ε, uniform", "mean over ε, N(0, 0.02)", "at 1/255, uniform", "at 1/255, N(0, 0.02)")
    checks = [check(f"a − b {name}", 0.03) for name in names]
    uniform, normal = (f"mean over ε +3.0{unit} [1.0, 5.0], at 1/255 +3.0 [1.0, 5.0]" for unit in (" points", ""))
    assert estimates_line(Claim("", "", "", checks)) == f"uniform: {uniform}; N(0, 0.02): {normal}"
    checks[0] = check(f"a − b {names[0]}", -0.03)
    first = "uniform: mean over ε −3.0 points [−5.0, −1.0] contradicted, at 1/255 +3.0 [1.0, 5.0] holds; "
    assert estimates_line(Claim("", "", "", checks)).startswith(first)
    tails = [check(f"{name}, c − d, {end}", 0.03) for name in "ab" for end in ("x", "y")]
    both = "c − d, x: a +3.0 points [1.0, 5.0], b +3.0 [1.0, 5.0]; c − d, y: a +3.0 [1.0, 5.0], b +3.0 [1.0, 5.0]"
    assert estimates_line(Claim("", "", "", tails)) == both
    units = [check("a at x", 0.03), replace(check("a at y", 0.03), unit="")]
    assert estimates_line(Claim("", "", "", units)) == "x: +3.0 points [1.0, 5.0]; y: +0.030 [0.010, 0.050]"


def test_brief_numbers_name_the_least():
    checks = [Check(f"a − b in {task}", Estimate(v, v - 0.01, v + 0.01, 300)) for task, v in (("x", 0.2), ("y", 0.1))]
    assert brief_numbers(Claim("", "", "", checks))["least"] == "y, +10.0 [9.0, 11.0]"


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["ASR of a at 1/255, PGD", "ASR of a at 2/255, PGD"], ["1/255", "2/255"]),
        (["ASR of a"], ["ASR of a"]),
        (["ln L(depth 4) − ln L(depth 1)", "ln L(depth 2) − ln L(depth 1)"], ["depth 4", "depth 2"]),
        (["a − b, x", "a − b, x, N(0, 0.02)"], ["x", "x, N(0, 0.02)"]),
        (["a at 1, x", "a at 2, x, N(0, 0.02)"], ["at 1, x", "at 2, x, N(0, 0.02)"]),
        (["a of f(x), 1,000 images", "a of f(y), 1,000 images"], ["x", "y"]),
        (["a (b), c", "a (b), d, 1,000 e"], ["c", "d, 1,000 e"]),
        (["a(b), mean", "a(b) at 1, N(0, 0.02)"], ["mean", "at 1, N(0, 0.02)"]),
        (["a at λ 0.8 against 0.5 to 0.7", "a at λ 0.8 against 0.9"], ["against 0.5 to 0.7", "against 0.9"]),
    ],
)
def test_told_apart_leaves_out_shared_words(texts, told):
    assert told_apart(texts) == told


def test_price_is_in_seeds_and_core_hours():
    undecided = check("a − b", 0.05, half=0.06, seeds=3, error=math.sqrt(0.0002))
    assert price(Claim("", "", "", [undecided], seconds=600.0)) == "8 seeds, 1.3 core-hours"


def test_claim_is_ours_if_it_is_not_in_the_paper():
    assert [Claim("", s, "", []).whose("diffclip") for s in ("Section 4.2", NOT_IN_PAPER)] == ["diffclip", "own"]


def test_joint_verdict_leaves_out_exceptions():
    assert joint(["holds", "undecided", "contradicted"], 1) == "undecided"
    assert joint(["holds", "contradicted"], 1) == "holds"


def test_claim_verdict_is_that_of_its_worst_check():
    yes, none, no = check("", 0.1), check("", 0.0, half=0.01), check("", -0.1)
    unknown = check("", 0.0, half=0.1, error=0.05)
    several = ([yes], [yes, none], [yes, none, unknown], [unknown, no])
    expected = ["holds", "absent", "undecided", "contradicted"]
    assert [Claim("", "", "", checks).verdict for checks in several] == expected


def test_in_words_names_levels():
    assert in_words({"eps": 1 / 255, "depth": 3, "data": "cifar10"}) == " at 1/255, depth 3, cifar10"


def test_models_in_short_have_ranges_and_facts_of_data():
    names = ("fashion-mnist", "openmoji", "folder:pets")
    assert [titled(name) for name in names] == ["Fashion-MNIST", "OpenMoji's drawings", "folder:pets"]
    assert _range([55_114, 604_938]) == "55 thousand to 605 thousand"
    assert _range([12_732_097, 12_700_000]) == "12.7 million"
    assert _sets(["cifar10", "cc3m"]) == "CIFAR-10 (32×32 RGB, 10 classes) and cc3m"
    sizes = {"dim": 64, "num_heads": 4, "patch_size": 7}
    models = [TrainVit(model="vit", data="fashion-mnist", sizes={"depth": depth, **sizes}) for depth in (1, 12)]
    assert vits_in_short(models) == (
        "ViTs and DiffViTs with 1 to 12 layers and 55 thousand to 605 thousand parameters on Fashion-MNIST "
        "(28×28 grey, 10 classes)"
    )


def test_line_of_the_paper_knows_declared_deviations():
    line = Line("train.seeds", (1,), ours=(3,), why="for an interval")
    assert [line.verdict((n,)) for n in (1, 3, 2)] == ["same", "declared deviation", "differs"]


def test_rounded_keeps_significant_bits():
    assert _rounded(pl.DataFrame({"loss": [1 / 3, None, 0.0]}), 12)["loss"].to_list() == [0.3333740234375, None, 0.0]


def test_core_seconds_count_threads():
    assert core_seconds({"seconds": 30.0, "hardware": "AMD EPYC 7B13, 2 threads"}) == 60.0


def test_listed_fields():
    assert listed({"steps": 20, "queries": 5}) == "steps 20, queries 5"
    assert listed({}, ", ") == ""


def test_figures_have_fixed_colours_seeds_and_both_schemes():
    styles = series_styles(["ViT", "DiffViT", "other"]).values()
    assert [style.color for style in styles] == ["#0072B2", "#D55E00", "#009E73"]
    seeds = seeds_of(pl.DataFrame({"by_seed": [[0.1, 0.2, 0.4], [0.3, 0.5]]}))
    assert seeds.tolist()[0] == [0.1, 0.2, 0.4]
    assert math.isnan(seeds[1, 2])
    assert for_both_schemes('<svg width="9"><path/></svg>').startswith('<svg width="9"><style>')
