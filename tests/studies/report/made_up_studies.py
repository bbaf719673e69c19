"""Made-up results of studies, one of each kind of page."""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from antiphase.statistics.seeds_by_images import CrossedEstimate, Spread
from antiphase.studies.claims import Check, Claim
from antiphase.studies.figures import ESTIMATES, Artefact, Gallery, Panel, Picture, Plot, Table
from antiphase.studies.report.site import write_site
from antiphase.studies.results import Result

EPS = tuple(steps / 255 for steps in (0.5, 1, 2, 4, 8))
EVIL = '<b class="x">&amp; "CLIP" | *`$\\alpha$`*</b>'
LONG = "a-very-long-name/of-a-model_that/somebody-trained-with-many-settings-and-wrote-all-of-them-in-its-name"


def points(
    curves: dict[str, Sequence[float]],
    x: Sequence[float],
    half: float | None = 0.03,
    seeds: int | None = 3,
    n: int | None = 1000,
) -> pl.DataFrame:
    rows = [
        (series, position, value, *((None, None) if half is None else (value - half, value + half)), n, seeds)
        for series, values in curves.items()
        for position, value in zip(x, values, strict=True)
    ]
    schema = {"series": pl.String, "x": pl.Float64} | ESTIMATES
    return pl.DataFrame(rows, schema=schema, orient="row")


def published(curves: dict[str, Sequence[float]], x: Sequence[float]) -> pl.DataFrame:
    return points(curves, x, None).select("series", "x", pl.col("value").round(3))


def rising(scale: float, count: int = 5) -> list[float]:
    return [1 - math.exp(-scale * 2**exponent) for exponent in range(count)]


def cells(rows: Sequence[tuple]) -> pl.DataFrame:
    schema = {"row": pl.String, "column": pl.String} | ESTIMATES | {"paper": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def scene(seed: int, side: int = 64) -> np.ndarray:
    """Return something as smooth as a photograph: noise whose amplitude falls as its frequency rises."""
    generator = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side)[None]) + 1 / side
    waves = np.fft.fft2(generator.normal(size=(3, side, side))) / frequency**1.4
    image = np.fft.ifft2(waves).real.transpose(1, 2, 0)
    image = (image - image.min((0, 1))) / (image.max((0, 1)) - image.min((0, 1)))
    return (255 * image).astype(np.uint8)


def gallery(rows: int, columns: int, side: int = 64, name: str = "maps") -> Gallery:
    generator = np.random.default_rng(3)
    long = "DiffCLIP*, a dog under a tree and a lamp"
    titles = ["image", "CLIP: a dog", "DiffCLIP: a dog", long, "A1", "A2", "A1 − λA2"]
    pictures = []
    for row in range(rows):
        image = scene(row, side)
        pictures.append(
            tuple(
                Picture(titles[column % 7], image, None if column == 0 else generator.normal(size=(7, 7)))
                for column in range(columns)
            )
        )
    return Gallery(name, "What each model attends to for the text; blue is below 0, red above.", tuple(pictures))


def over_seeds(value: float, low: float, high: float, n: int, seeds: int = 16) -> CrossedEstimate:
    """Return an estimate over seeds with the standard error that its interval implies."""
    if math.isinf(high):
        return CrossedEstimate(value, low, high, n)
    return CrossedEstimate(value, low, high, n, Spread(seeds, n, ((high - low) / 2 / 2.13) ** 2, 0.0, 0.0))


def claims() -> list[Claim]:
    """One of each verdict."""
    return [
        Claim(
            "fragile-at-depth-1",
            "Section 5.2, Figure 2(a)",
            "At depth 1, DiffViT breaks more often than ViT under PGD at every ε tried.",
            [
                Check(f"ASR(DiffViT) − ASR(ViT) at {steps}/255", over_seeds(value, value - 0.03, value + 0.04, 1000))
                for steps, value in ((0.5, 0.0304), (1, 0.089), (2, 0.179), (4, 0.335), (8, 0.247))
            ],
        ),
        Claim(
            "lipschitz-rises",
            "Section 5.3, Figure 3(d)",
            "The mean local Lipschitz estimate rises with depth.",
            [
                Check("ln L(depth 4) − ln L(depth 1)", over_seeds(-0.4213, -0.61, -0.23, 64), unit=""),
                Check("ln L(depth 2) − ln L(depth 1)", over_seeds(0.1, -math.inf, math.inf, 1), unit=""),
            ],
        ),
        Claim(
            "crossover",
            "Section 5.2",
            "At depth 4 and ε = 1/255, DiffViT breaks less often than ViT.",
            [Check("ASR(ViT) − ASR(DiffViT) at depth 4", over_seeds(0.0241, -0.0102, 0.0594, 300))],
        ),
        Claim("autoattack", "Figure 3(b)", "The same under AutoAttack.", [Check("ASR(ViT) − ASR(DiffViT)", None)]),
        Claim(
            "restarts",
            "Figure 6",
            "Random restarts raise the ASR.",
            [Check("ASR(3 restarts) − ASR(1 start)", over_seeds(0.002, -0.003, 0.007, 1000))],
        ),
    ]


TEXT = """Table 1 of the paper: what λ_init does to accuracy and attack success.

The DiffViT of one layer is trained on CIFAR-10 with six values of `λ_init` and attacked by PGD at ε = 1/255.
The paper finds that ASR rises up to 0.8 and falls **beyond** it.

| λ_init | 0.5 | 0.7 | 0.8 | 0.85 | 0.9 | 0.95 |
|---|---|---|---|---|---|---|
| accuracy | .8605 | .8697 | .8700 | .8567 | .8524 | .8468 |
| ASR, 1/255 | .4074 | .6772 | .8498 | .7531 | .4956 | .4164 |

- Under `laptop` the images are Fashion-MNIST's, 28 × 28, and the model is 96 wide,
  for lack of CIFAR-10 in the package.
- Under `paper` the images are CIFAR-10's <not in the package> & have to be there.

Cost: laptop 20 minutes on 2 cores; paper about 3 hours on one H100. The command:

    antiphase study run table-1 --profile laptop --seeds 3
"""
_RUN = {
    "settings": {"attack": "PGD, 20 steps, ε/4 each", "images": "1,000 of Fashion-MNIST's test images", "width": "96"},
    "versions": {"antiphase": "0.1.0", "python": "3.11.7", "torch": "2.13.0, 2.15.0"},
    "hardware": ("2 cores of an AMD EPYC", "one NVIDIA H100 80GB HBM3"),
}
LAMBDAS = (0.5, 0.7, 0.8, 0.85, 0.9, 0.95)
_PAPER_ASR = (0.4074, 0.6772, 0.8498, 0.7531, 0.4956, 0.4164)


def table_1() -> Result:
    accuracy = (0.8605, 0.8697, 0.87, 0.8567, 0.8524, 0.8468)
    rows = []
    for name, values, paper_values, half in (
        ("accuracy", [a - 0.013 for a in accuracy], accuracy, 0.011),
        ("ASR at 1/255", [0.28, 0.31, 0.35, 0.33, 0.34, 0.32], _PAPER_ASR, 0.067),
    ):
        for lam, value, paper in zip(LAMBDAS, values, paper_values, strict=True):
            rows.append((name, f"{lam:g}", value, value - half, value + half, 1000, 3, paper))
    asr = Panel(
        "",
        "λ_init",
        "ASR at ε = 1/255",
        points({"DiffViT": [row[2] for row in rows[6:]]}, LAMBDAS, 0.067),
        percent=True,
        paper=published({"DiffViT": _PAPER_ASR}, LAMBDAS),
    )
    caption = "Means over 3 seeds and 1,000 images each; bands are 95% intervals over both."
    return Result(
        "table-1",
        "robustness",
        "Table 1",
        "Fragility over λ_init",
        TEXT,
        "laptop",
        (0, 1, 2),
        "antiphase study run table-1 --profile laptop --seeds 3",
        46,
        46,
        Artefact(
            (Plot("asr", caption, (asr,), 1),),
            (Table("lambdas", "Accuracy and attack success over λ_init", "", cells(rows)),),
        ),
        claims()[:2],
        seconds=7984.2,
        **_RUN,
    )


def figure_2() -> Result:
    """Lines over ε and bars, series that differ by panel; half of its cells are there."""
    scales = {"ViT, CIFAR-10": 0.1, "DiffViT, CIFAR-10": 0.22, "ViT, CIFAR-100": 0.2, "DiffViT, CIFAR-100": 0.4}
    four = {name: rising(scale) for name, scale in scales.items()}
    clips = dict(zip(("CLIP", "DiffCLIP", "DiffCLIP*", "DiffCLIP†"), map(rising, (0.1, 0.2, 0.14, 0.3)), strict=True))
    widths = (4.0, 8.0, 12.0, 16.0, 24.0)
    asr, side = "attack success rate", "side of the patch, pixels"
    paper_points = published({"CLIP": rising(0.13), "DiffCLIP": rising(0.25)}, EPS)
    panels = (
        Panel("(a) PGD, controlled", "ε", asr, points(four, EPS), scale="eps", percent=True),
        Panel("(b) PGD, pretrained", "ε", asr, points(clips, EPS), scale="eps", percent=True, paper=paper_points),
        Panel("(c) Patches, controlled", side, asr, points(four, widths), percent=True),
        Panel("(d) Patches, pretrained", side, asr, points(clips, widths, None), percent=True),
    )
    wild = points({"ViT": [1.2, 2.3, 2.9], "DiffViT": [1.4, 2.2, 4.1]}, (1, 2, 4), 0.2)
    wild = wild.with_columns(
        high=pl.when(pl.col("x") == 4).then(math.inf).otherwise(pl.col("high")),
        low=pl.when(pl.col("x") == 4).then(-math.inf).otherwise(pl.col("low")),
    )
    depth = Panel("Lipschitz", "depth", "local Lipschitz constant", wild, scale="log")
    apart = points({"DiffViT − ViT": [0.12, 0.05, -0.04]}, (1, 2, 4), 0.06)
    difference = Panel("Difference", "depth", "difference in ASR, points", apart, percent=True, level=0.0, scale="log")
    rows = [
        (model, name, value, *((None, None) if model == "ViT" else (-math.inf, math.inf)), 300, 1, None)
        for (model, value), name in itertools.product((("ViT", 0.4), ("DiffViT", None)), ("PGD", "patch", "AutoAttack"))
    ]
    return Result(
        "figure-2",
        "robustness",
        "Figure 2",
        "Attack success of twins under PGD, as examples and as patches",
        "Figure 2: ASR over ε.\n\nThe paper prints no numbers.\n\nantiphase study run figure-2 --profile laptop",
        "laptop",
        (0,),
        "antiphase study run figure-2 --profile laptop",
        12,
        46,
        Artefact(
            (
                Plot("pgd", "Attack success over ε and over the side of a patch; bands are 95% intervals.", panels, 2),
                Plot("depth", "Three depths.", (depth, difference), 2),
            ),
            (Table("rates", "Attack success at 1/255", "model", cells(rows)),),
            notes=("The patch is placed at random, as in the paper.",),
        ),
        claims()[2:],
        seconds=431.0,
        **_RUN,
    )


def ood() -> Result:
    """Bars with the paper's numbers, a wide table, galleries, and names that are hard to show."""
    sets = ("ImageNet", "ImageNet-V2", "ImageNet-A", "ImageNet-R", "ImageNet-Sketch")
    names = ("CLIP", "DiffCLIP", "DiffCLIP*", "DiffCLIP†")
    generator = np.random.default_rng(1)
    curves = {name: generator.uniform(0.1, 0.5, 5).tolist() for name in names}
    paper_curves = {name: [value + 0.06 for value in curves[name]] for name in names[:2]}
    bars = Panel(
        "Zero-shot accuracy",
        "",
        "top-1 accuracy",
        points(curves, range(5), 0.02),
        kind="bar",
        ticks=sets,
        percent=True,
        paper=published(paper_curves, range(5)),
    )
    strange = points({EVIL: [0.2, 0.4], LONG: [0.3, 0.1]}, range(2), 0.02)
    odd = Panel(EVIL, "", "y", strange, kind="bar", ticks=(EVIL, LONG))
    rows = [
        (f"{name}{suffix}", place, value, value - 0.012, value + 0.012, 10_000, 3, round(value + 0.0112, 3))
        for suffix in ("", f" {EVIL}")
        for name in names
        for place, value in zip((*sets, EVIL), [*curves[name], 0.5], strict=True)
    ]
    plain = [
        ("time, s", LONG, 3412.2, 3390.0, 3431.0, 10, 1, 3000.0),
        ("memory, GB", LONG, 4.0, None, None, None, None, None),
    ]
    return Result(
        "figure-3",
        "diffclip",
        "Figure 3",
        f"Zero-shot accuracy off the distribution {EVIL}",
        f"Figure 3 {EVIL}.\n\n| {EVIL.replace('|', '')} | 1.0 |\n\nA paragraph of {EVIL}.",
        "paper",
        (0, 1, 2),
        f"antiphase study run figure-3 --profile paper --note '{EVIL}'",
        8,
        8,
        Artefact(
            (Plot("bars", EVIL, (bars,), 1), Plot("odd", LONG, (odd,), 1)),
            (
                Table("ood", "Top-1 accuracy", "model", cells(rows)),
                Table("cost", EVIL, "of", cells(plain), percent=False, digits=0),
            ),
            (gallery(2, 3), gallery(1, 1, 17, "one")),
            (EVIL,),
        ),
        [Claim(EVIL, EVIL, EVIL, [Check(EVIL, over_seeds(0.0241, 0.0003, 0.05, 300))])],
        settings={EVIL: EVIL},
        versions={"antiphase": EVIL},
        hardware=(LONG,),
        seconds=400_000.0,
    )


def empty() -> Result:
    claim = Claim("retrieval", "Table 2", "DiffCLIP retrieves better.", [Check("R@5", None), Check("R@1", None)])
    return Result(
        "table-2",
        "diffclip",
        "Table 2",
        "Retrieval and zero-shot accuracy",
        "",
        "smoke",
        (),
        "antiphase study run table-2",
        0,
        14,
        None,
        [claim],
    )


def studies() -> list[Result]:
    """All of them, with two panels of Figure 2, since drawing takes long."""
    lines = figure_2()
    assert lines.artefact
    plot = lines.artefact.plots[0]
    few = replace(lines.artefact, plots=(replace(plot, panels=plot.panels[1:3]),))
    return [table_1(), replace(lines, artefact=few), ood(), empty()]


@functools.cache
def written_site(base: Path) -> Path:
    """Write the site of all of them into a folder below ``base``, once for all tests of a process."""
    return write_site(studies(), base / "made-up-site").parent
