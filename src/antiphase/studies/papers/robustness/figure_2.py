"""Figure 2: ASR of models with and without differential attention under PGD and adversarial patches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import polars as pl

from antiphase.data.sources import source_of
from antiphase.studies.checks import each_data, higher
from antiphase.studies.claims import Claim
from antiphase.studies.estimation import ASR, CORRECT, estimates, over
from antiphase.studies.figures import IN_255THS, Artefact, Plot, panels, tables
from antiphase.studies.paper_settings import printed_numbers
from antiphase.studies.papers.robustness.bench import (
    EPS,
    all_cells,
    attacked_clips,
    bench,
    clip_settings,
    settings,
    twins,
)
from antiphase.studies.scale import titled
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

PAPER = printed_numbers("robustness", "figure-2a").with_columns(
    x=pl.col("column").str.strip_suffix("/255").cast(pl.Float64) / 255
)
MANY_CLASSES = "imagenet"
"""The set on which the paper finds the two CLIPs nearly alike."""

WIDTHS = (2, 4, 8)
CLIP_WIDTHS = {"paper": (8, 16, 32), "laptop": WIDTHS, "smoke": (4, 8)}
RATE = "attack success rate"
_WIDTH = pl.format("width {}", "width")


def draw_rates(
    rows: RowsByTable,
    name: str,
    by: str,
    attack: str = "PGD",
    prefix: str = "asr",
    paper: pl.DataFrame | None = None,
) -> Artefact:
    """Return a panel and a table for each data set: ASR over ``eps`` or ``width``, and the clean accuracy of CLIPs."""
    rates = estimates(rows["attack"], ["data", "series", by], ASR)
    if by == "eps":
        labels, column, style = ("ε", RATE), IN_255THS, {"scale": "eps"}
    else:
        labels, column, style = ("width in pixels", RATE), _WIDTH, {}
    kind = attack.partition(" ")[0]
    drawn = panels(rates, f"{kind}, {{data}}", by, labels, paper=paper, percent=True, **style)
    what = "a patch" if kind == "patches" else attack
    caption = f"Share of images whose prediction {what} changes. Bands: 95 % over {over(rates)}."
    shown = tables(
        rates, f"ASR under {attack}, {{data}}", f"{prefix}-{{data}}", "series", column, paper=paper
    )
    if prefix.endswith("clip"):
        clean = estimates(rows["accuracy"], ["series", "data"], CORRECT)
        shown += tables(clean, "Clean accuracy, zero-shot", "accuracy-clip", "series", "data")
    return Artefact([Plot(name, caption, drawn)], shown)


def levels(rows: RowsByTable) -> list[str]:
    """Return two sentences for each data set: ASR at 1/255 and accuracy of both models, and the paper's ASR."""
    eps, said = 1 / 255, []
    attacks = rows["attack"].filter((pl.col("eps") - eps).abs() < 1e-9)
    rates, right = (
        estimates(frame, ["data", "series"], value)
        for frame, value in ((attacks, ASR), (rows["accuracy"], CORRECT))
    )
    theirs, own = PAPER.filter(column="1/255").select("value", "data").row(0)
    for (data,), block in rates.group_by("data", maintain_order=True):
        asr, clean = (
            dict(frame.select("series", "value").iter_rows()) for frame in (block, right.filter(data=data))
        )
        if asr.keys() & clean.keys() >= {"ViT", "DiffViT"}:
            said.append(
                f"With one layer, PGD at 1/255 changes {asr['ViT']:.1%} of ViT's predictions and {asr['DiffViT']:.1%} "
                f"of DiffViT's on {titled(str(data))}; their clean accuracies are {clean['ViT']:.1%} and "
                f"{clean['DiffViT']:.1%}. The paper reports {theirs:.1%} for its one-layer DiffViT at 1/255 on "
                f"{titled(own)} and no number for ViT"
                f"{'' if data == own else '; models and data differ, so that the two do not compare'}."
            )
    return [sentence.replace("%", " %") for sentence in said]


def _vit_study(
    part: str,
    title: str,
    text: str,
    attacks: Callable[[Profile], list[Cell]],
    draw: Callable[[RowsByTable], Artefact],
    claim: tuple[str, str],
    levels: Mapping[str, Sequence[float]],
) -> Study:
    """Return the study of one-layer ViTs under an attack: their accuracy as well, and one claim."""

    def cells(profile: Profile) -> list[Cell]:
        return all_cells(attacks(profile), [bench(profile).accuracy(model) for model in twins(profile)])

    def claims(rows: RowsByTable) -> list[Claim]:
        name, words = claim
        source = f"Section 5.2, Figure 2({part})"
        return each_data(
            rows["attack"],
            lambda own: [Claim(name, source, words, higher(own, "DiffViT", than="ViT", **levels))],
        )

    return Study(
        f"figure-2{part}", "robustness", f"Figure 2({part})", title, text, cells, draw, claims, settings
    )


def _clip_study(
    part: str,
    title: str,
    text: str,
    attacks: Callable[[Profile], list[Cell]],
    draw: Callable[[RowsByTable], Artefact],
    claim: tuple[str, str],
    many: tuple[str, str, str, str],
    by: str,
) -> Study:
    """Return the study of CLIPs under an attack: a claim for sets of few classes, another for ImageNet."""

    def cells(profile: Profile) -> list[Cell]:
        own = bench(profile)
        return all_cells(attacks(profile), [own.clip_accuracy(*pair) for pair in attacked_clips(profile)])

    def claims(rows: RowsByTable) -> list[Claim]:
        source, own = f"Section 5.2, Figure 2({part})", rows["attack"]
        names, values = (own[column].unique(maintain_order=True).to_list() for column in ("data", by))
        few = [name for name in names if name != MANY_CLASSES]
        checks = higher(own, "DiffCLIP", than="CLIP", **{by: values, "data": few})
        made = [Claim(claim[0], source, f"{few_classes(names)} {claim[1]}", checks)]
        if MANY_CLASSES in names:
            name, words, first, second = many
            checks = higher(own, first, than=second, **{by: values, "data": MANY_CLASSES})
            made.append(Claim(name, source, words, checks))
        return made

    return Study(
        f"figure-2{part}", "robustness", f"Figure 2({part})", title, text, cells, draw, claims, clip_settings
    )


def few_classes(names: Sequence[str]) -> str:
    """Name the sets of few classes, for a statement.

    >>> few_classes(["openmoji", "imagenet"])
    "On a set of few classes (OpenMoji's drawings, 9),"
    """
    few = [f"{titled(name)}, {source_of(name).classes}" for name in names if name != MANY_CLASSES]
    return f"On a set of few classes ({'; '.join(few)}),"


FIGURE_2A = _vit_study(
    "a",
    "ASR under PGD with one layer",
    """ASR of ViT and DiffViT of one layer under PGD, over ε.

The paper (Section 5.2, Figure 2(a)): on CIFAR-10 and CIFAR-100 DiffViT has the higher ASR at every ε; on CIFAR-10 its
ASR at .25, .5 and 1/255 is .3310, .6367 and .8498 (Table 3). The other points and the values of ε are only drawn:
here .5 to 8/255.
""",
    lambda profile: [bench(profile).attack(model) for model in twins(profile)],
    lambda rows: replace(draw_rates(rows, "figure-2a", "eps", paper=PAPER), notes=levels(rows)),
    ("fragile-at-depth-1", "With one layer, DiffViT has a higher ASR than ViT under PGD for ε up to 2/255."),
    {"eps": [eps for eps in EPS if eps <= 2 / 255]},
)

FIGURE_2B = _clip_study(
    "b",
    "ASR of CLIPs under PGD",
    """ASR of CLIP and DiffCLIP under PGD on the cosine, over ε.

The paper (Section 5.2, Figure 2(b); the authors' CLIP and DiffCLIP, COCO and ImageNet) says that on COCO DiffCLIP is
the more vulnerable one at every budget, and slightly so on ImageNet. The numbers are only drawn. PGD lowers the cosine
of the image to the prompt "a photo of <class>" (Appendix C.2.1); an image of COCO has the class of its largest object;
the paper does not say how it chose one. 1,000 of the 40,000 and 50,000 images are attacked, with one random start.
There is one model of each kind: intervals are over images.

The hub name of the released CLIP is inferred and unverified; ``--baseline FILE`` replaces it.
""",
    lambda profile: [bench(profile).clip_attack(*pair, EPS) for pair in attacked_clips(profile)],
    lambda rows: draw_rates(rows, "figure-2b", "eps", "PGD on the cosine", "asr-clip"),
    ("clip-fragile-few-classes", "DiffCLIP has a higher ASR than CLIP under PGD at every ε."),
    ("clip-fragile-imagenet", "On ImageNet DiffCLIP has a slightly higher ASR.", "DiffCLIP", "CLIP"),
    "eps",
)

FIGURE_2C = _vit_study(
    "c",
    "ASR under patches with one layer",
    """ASR of ViT and DiffViT of one layer under adversarial patches, by their width.

The paper (Section 5.2, Figure 2(c)): on CIFAR-10 and CIFAR-100 DiffViT has the higher ASR at every width; the numbers
are only drawn. ε = 1 inside a square at a random place (Appendix C.2.1); the widths 2, 4 and 8 are those of Table 2.
""",
    lambda profile: [bench(profile).patch(model, width) for width in WIDTHS for model in twins(profile)],
    lambda rows: draw_rates(rows, "figure-2c", "width", "patches", "patches"),
    ("fragile-to-patches", "With one layer, DiffViT has a higher ASR than ViT under patches of every width."),
    {"width": WIDTHS},
)

FIGURE_2D = _clip_study(
    "d",
    "ASR of CLIPs under patches",
    """ASR of CLIP and DiffCLIP under adversarial patches, by their width.

The paper (Section 5.2, Figure 2(d); the authors' CLIP and DiffCLIP, COCO and ImageNet) says that on COCO DiffCLIP is
the more vulnerable one at every patch size, and that on ImageNet "CLIP marginally outperforms DiffCLIP", which is read
here as CLIP having the slightly higher ASR. The numbers are only drawn and the widths not given: 8, 16 and 32 of 224
pixels here, 2, 4 and 8 of 64, as in Table 2. ε = 1 in a square at a random place, objective as in Figure 2(b). 1,000
of the 40,000 and 50,000 images are attacked, with one random start.

The hub name of the released CLIP is inferred and unverified; ``--baseline FILE`` replaces it.
""",
    lambda profile: [
        bench(profile).clip_attack(*pair, (1.0,), "patch", width=width)
        for pair in attacked_clips(profile)
        for width in CLIP_WIDTHS[profile.name]
    ],
    lambda rows: draw_rates(rows, "figure-2d", "width", "patches", "patches-clip"),
    ("clip-fragile-to-patches", "DiffCLIP has a higher ASR than CLIP under patches of every width."),
    (
        "clip-above-on-imagenet",
        "On ImageNet CLIP has the slightly higher ASR under patches.",
        "CLIP",
        "DiffCLIP",
    ),
    "width",
)
