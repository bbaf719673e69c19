"""ASR of CLIP and DiffCLIP under adversarial patches, by their width.

The paper (Section 5.2, Figure 2(d); the authors' CLIP and DiffCLIP, COCO and ImageNet) says that on COCO DiffCLIP is
the more vulnerable one at every patch size, and that on ImageNet "CLIP marginally outperforms DiffCLIP", which is read
here as CLIP having the slightly higher ASR. The numbers are only drawn and the widths not given: 8, 16 and 32 of 224
pixels here, 2, 4 and 8 of 64, as in Table 2. ε = 1 in a square at a random place, objective as in Figure 2(b). 1,000
of the 40,000 and 50,000 images are attacked, with one random start.

The hub name of the released CLIP is inferred and unverified; ``--baseline FILE`` replaces it.

| profile | models | cost |
|---|---|---|
| paper | 2, released; COCO and ImageNet, 1,000 images each | not run |
| laptop | 16, OpenMoji | the trainings of DiffCLIP's Table 2, 3 core-minutes of patches a model |

antiphase study run figure-2d --profile laptop
"""

import polars as pl

from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import ASR, estimates, over
from antiphase.studies.figures import Artefact, Panel, Plot
from antiphase.studies.papers.robustness.bench import all_cells
from antiphase.studies.papers.robustness.clip_attacks import (
    MANY_CLASSES,
    accuracy_table,
    clip_accuracy,
    clip_attack,
    few_classes,
    lineup,
    settings,
)
from antiphase.studies.papers.robustness.show import against, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

WIDTHS = {"paper": (8, 16, 32), "laptop": (2, 4, 8), "smoke": (4, 8)}


def cells(profile: Profile) -> list[Cell]:
    """Patches of every width on both models and every set."""
    patches = [
        clip_attack(profile, model, data, (1.0,), "patch", width=width)
        for model, data in lineup(profile)
        for width in WIDTHS[profile.name]
    ]
    return all_cells(patches, clip_accuracy(profile))


def draw(rows: RowsByTable) -> Artefact:
    """A panel for each data set: ASR over the width."""
    found = estimates(rows["attack"], ["data", "series", "width"], ASR)
    panels, tables = [], []
    for (data,), block in found.group_by("data", maintain_order=True):
        points = block.with_columns(x=pl.col("width").cast(pl.Float64)).drop("data", "width")
        panels.append(
            Panel(f"patches, {data}", "width in pixels", "attack success rate", points, percent=True)
        )
        width = pl.format("width {}", "width")
        tables.append(
            table_of(block, pl.col("series"), width, f"patches-clip-{data}", f"ASR under patches, {data}")
        )
    tables.append(accuracy_table(rows["accuracy"], "accuracy-clip"))
    caption = f"Share of images whose prediction a patch changes. Bands: 95 % over {over(found)}."
    return Artefact([Plot("figure-2d", caption, tuple(panels))], tables)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffCLIP is more fragile on sets of few classes."""
    attacks = rows["attack"]

    def checks(data: str, first: str, second: str) -> list[Check]:
        return [
            Check(
                f"ASR({first}) − ASR({second}), width {width}, {data}",
                against(attacks, first, second, ASR, data=data, width=width),
            )
            for width in attacks["width"].unique(maintain_order=True)
        ]

    names = attacks["data"].unique(maintain_order=True).to_list()
    few = [check for data in names if data != MANY_CLASSES for check in checks(data, "DiffCLIP", "CLIP")]
    found = [
        Claim(
            "clip-fragile-to-patches",
            "Section 5.2, Figure 2(d)",
            f"{few_classes(names)} DiffCLIP has a higher ASR than CLIP under patches of every width.",
            few,
        )
    ]
    if MANY_CLASSES in names:
        found.append(
            Claim(
                "clip-above-on-imagenet",
                "Section 5.2, Figure 2(d)",
                "On ImageNet CLIP has the slightly higher ASR under patches.",
                checks(MANY_CLASSES, "CLIP", "DiffCLIP"),
            )
        )
    return found


study = Study(
    "figure-2d",
    "robustness",
    "Figure 2(d)",
    "ASR of CLIPs under patches",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
