"""How numbers, names and intervals are written: an example of each form."""

import math
import os

import pytest

from antiphase.commands.audit.card import _escaped
from antiphase.commands.options import eps_text, read_models, read_settings, read_words
from antiphase.commands.result import listed
from antiphase.errors import UserError, first_line, one_line, shown
from antiphase.files import printable
from antiphase.registry import find
from antiphase.report import words
from antiphase.report.figure import Family, families, seed_counts, shortened
from antiphase.report.page import in_one_line, quoted_place
from antiphase.report.table import escaped, in_latex
from antiphase.statistics.intervals import Estimate
from antiphase.terminal import duration, eps_label, safe

VITS = [{"name": f"vit-{seed}", "attention": "softmax", "seed": seed} for seed in (0, 1)]
SEEDS = [Family("a", "", ("a-0", "a-1")), Family("b", "", ("b-0", "b-1", "b-2")), Family("c", "", ("c",))]
EXAMPLES = [
    # attacks
    (words.attack_label("pgd", "linf"), "PGD (L∞)"),
    (words.attack_name("worst of pgd, apgd-ce"), "worst of PGD, APGD-CE"),
    (words.attack_condition("pgd", "linf", 20), "L∞ PGD-20"),
    (words.attack_condition("square", "l2", None), "L2 Square"),
    # numbers
    (words.percent(0.3541), "35.4"),
    (words.points(0.179), "+17.9"),
    (words.points(-0.02), "−2.0"),
    (words.points(0.0), "0.0"),
    (words.p_text(3e-9), "p < 0.0001"),
    (words.p_text(0.0312), "p = 0.031"),
    (words.number(-0.25, 1), "−0.2"),
    (words.number(math.inf, 1), "∞"),
    (words.number(math.nan, 1), "–"),
    (words.lambda_range([0.8]), "0.800"),
    (words.lambda_range([0.2, 0.55, 0.74]), "0.200–0.740"),
    (words.lambda_range([]), "–"),
    (duration(4.24), "4.2 s"),
    (duration(95), "1 min 35 s"),
    (duration(7984), "2 h 13 min"),
    (duration(400_000), "4 d 15 h"),
    (
        [eps_label(eps) for eps in (0.5 / 255, 4.5 / 255, 8 / 255, 0.2, 0.3, 2.0)],
        ["0.5/255", "4.5/255", "8/255", "0.2", "0.3", "2"],
    ),
    (eps_text((0.5 / 255, 8 / 255, 0.3)), "0.5/255,8/255,0.3"),
    # intervals
    (words.interval_text(-0.1, 0.25, "{:g}".format), "[-0.1, 0.25]"),
    (words.interval_text(0.0, 0.0, str), "no interval"),
    (words.interval_text(None, None, str), "no interval"),
    (words.with_interval("0.3", "[0.1, 0.5]"), "0.3 [0.1, 0.5]"),
    (words.with_interval("0.3", "no interval"), "0.3 (no interval)"),
    (words.estimate_of({"value": 0.5, "low": 0.1, "high": None, "n": 1}), Estimate(0.5, 0.1, math.inf, 1)),
    (words.percent_range(0.3251, 0.3842), "[32.5, 38.4]"),
    (words.percent_range(1.0, 1.0), "no interval"),
    (words.percent_range(0.0, 0.0001), "[0.00, 0.01]"),
    (words.points_interval(0.049, 0.022, 0.075), "+4.9 points [2.2, 7.5]"),
    (words.points_interval(0.1, 0.0004, 0.209), "+10.00 points [0.04, 20.90]"),
    (words.points_interval(0.1, None, None), "+10.0 points (no interval)"),
    (words.points_interval(-1e-17, -0.3, 0.3), "0.0 points [−30.0, 30.0]"),
    (quoted_place([0, 0, 0, 1]), 3),
    (quoted_place([0, 0, 0, 0]), 1),
    # names
    (families(VITS), [Family("vit", "#0072B2", ("vit-0", "vit-1"))]),
    (seed_counts(SEEDS), "2 to 3"),
    (shortened("a" * 20 + "b" * 40, 12), "aaa…bbbbbbbb"),
    (listed([{"name": name} for name in "abcd"]), "a, b and 2 more"),
    (in_one_line({"steps": 20, "step_size": "ε/4", "targets": None}), "steps 20, step_size ε/4, targets none"),
    (in_one_line([]), "–"),
    (shown("a" * 100, most=20), "'aaaaaaa … aaaaaaa'"),
    (first_line(OSError("no such file\ntry another")), "no such file"),
    (first_line(OSError()), "OSError"),
    (one_line(OSError("no such file\ntry another")), "no such file try another"),
    # what was typed
    (read_words("probe, few-shot"), ("probe", "few-shot")),
    (read_words(None), ()),
    (
        read_models("python:net.py:build?depth=4, width=8, cnn=timm:resnet18"),
        ("python:net.py:build?depth=4,width=8", "cnn=timm:resnet18"),
    ),
    (read_settings(["momentum=0.9"]), {"momentum": "0.9"}),
    (read_settings({"momentum": 0.9}), {"momentum": 0.9}),
    # text in other languages
    (safe("a\x1b[2Jb\u202ec\udce9"), r"a\x1b[2Jb\u202ec\xe9"),
    (printable(os.fsdecode(b"caf\xe9.png")), r"caf\xe9.png"),
    (escaped("DiffCLIP* of [1.0, 2.0] | <b>"), r"DiffCLIP\* of [1.0, 2.0] \| &lt;b>"),
    (
        in_latex("ε = 4/255: −3.1 % of a_b, m / (√2·L)"),
        r"$\varepsilon$ = 4/255: $-$3.1 \% of a\_b, m / ($\surd$2$\cdot$L)",
    ),
    (_escaped("<b>|[a](b)|\n# _c_ d_e"), r"&lt;b>\|[a\](b)\| # \_c\_ d_e"),
]


@pytest.mark.parametrize(("written", "expected"), EXAMPLES)
def test_text_is_written_as_in_the_example(written, expected):
    assert written == expected


def test_an_unknown_name_is_refused_with_those_that_there_are():
    with pytest.raises(UserError, match=r"^task 'prob': expected one of few-shot, probe$"):
        find({"few-shot": 5, "probe": 1}, "prob", "task")
