"""ASR of CLIP and DiffCLIP under PGD on the cosine, over ε.

The paper (Section 5.2, Figure 2(b); the authors' CLIP and DiffCLIP, COCO and ImageNet) says that on COCO DiffCLIP is
the more vulnerable one at every budget, and slightly so on ImageNet. The numbers are only drawn. PGD lowers the cosine
of the image to the prompt "a photo of <class>" (Appendix C.2.1); an image of COCO has the class of its largest object;
the paper does not say how it chose one. 1,000 of the 40,000 and 50,000 images are attacked, with one random start.
There is one model of each kind: intervals are over images.

The hub name of the released CLIP is inferred and unverified; ``--baseline FILE`` replaces it.

| profile | models | cost |
|---|---|---|
| paper | 2, released; COCO and ImageNet, 1,000 images each | not run |
| laptop | 16, OpenMoji | the trainings of DiffCLIP's Table 2, 5 core-minutes of PGD a model |

antiphase study run figure-2b --profile laptop
"""

from antiphase.budgets import eps_label
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import ASR, estimates, over
from antiphase.studies.figures import Artefact, Panel, Plot
from antiphase.studies.papers.robustness.bench import EPS, all_cells
from antiphase.studies.papers.robustness.clip_attacks import (
    MANY_CLASSES,
    accuracy_table,
    clip_accuracy,
    clip_attack,
    few_classes,
    lineup,
    settings,
)
from antiphase.studies.papers.robustness.show import against, eps_table
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study


def cells(profile: Profile) -> list[Cell]:
    """PGD at every ε on both models and every set."""
    return all_cells(
        [clip_attack(profile, model, data, EPS) for model, data in lineup(profile)], clip_accuracy(profile)
    )


def draw(rows: RowsByTable) -> Artefact:
    """A panel for each data set: ASR over ε."""
    found = estimates(rows["attack"], ["data", "series", "eps"], ASR)
    panels, tables = [], []
    for (data,), block in found.group_by("data", maintain_order=True):
        points = block.rename({"eps": "x"}).drop("data")
        panels.append(Panel(f"PGD, {data}", "ε", "attack success rate", points, scale="eps", percent=True))
        tables.append(eps_table(block, f"ASR under PGD on the cosine, {data}", f"asr-clip-{data}"))
    tables.append(accuracy_table(rows["accuracy"], "accuracy-clip"))
    caption = f"Share of images whose prediction PGD on the cosine changes. Bands: 95 % over {over(found)}."
    return Artefact([Plot("figure-2b", caption, tuple(panels))], tables)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffCLIP is more fragile."""
    attacks = rows["attack"]

    def checks(data: str) -> list[Check]:
        return [
            Check(
                f"ASR(DiffCLIP) − ASR(CLIP) at {eps_label(eps)}, {data}",
                against(attacks, "DiffCLIP", "CLIP", ASR, data=data, eps=eps),
            )
            for eps in EPS
        ]

    names = attacks["data"].unique(maintain_order=True).to_list()
    few = [check for data in names if data != MANY_CLASSES for check in checks(data)]
    found = [
        Claim(
            "clip-fragile-few-classes",
            "Section 5.2, Figure 2(b)",
            f"{few_classes(names)} DiffCLIP has a higher ASR than CLIP under PGD at every ε.",
            few,
        )
    ]
    if MANY_CLASSES in names:
        found.append(
            Claim(
                "clip-fragile-imagenet",
                "Section 5.2, Figure 2(b)",
                "On ImageNet DiffCLIP has a slightly higher ASR.",
                checks(MANY_CLASSES),
            )
        )
    return found


study = Study(
    "figure-2b", "robustness", "Figure 2(b)", "ASR of CLIPs under PGD", __doc__, cells, draw, claims, settings
)
