"""ASR of ViT and DiffViT under AutoAttack by depth.

The paper (Section 5.2, Figure 3(b)): as under PGD, at ε = 1/255 DiffViT's ASR falls with depth, below ViT's, and both
saturate at 4/255. Its AutoAttack is the ensemble of APGD-CE, APGD-DLR, FAB and Square (Appendix C.2.2), which is the
one from before August 2020; ``laptop`` gives each of them a fifth of its steps, and Square 200 queries instead of
5,000. Whether the paper's panel (b) is AutoAttack or ε = 4/255 is open, see :mod:`~.figure_3a`.

| profile | models | cost |
|---|---|---|
| paper | 60, CIFAR-10 and CIFAR-100 | not run |
| laptop | 124, Fashion-MNIST | not run at this size |

antiphase study run figure-3b --profile laptop
"""

from antiphase.studies.claims import Claim
from antiphase.studies.figures import Artefact
from antiphase.studies.papers.robustness.bench import bench, settings, twins
from antiphase.studies.papers.robustness.by_depth import AT, asr_claims, draw_asr
from antiphase.studies.papers.robustness.show import each_data
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study


def cells(profile: Profile) -> list[Cell]:
    """AutoAttack at 1/255 and 4/255 on models of every depth."""
    own = bench(profile)
    return [own.ensemble(model, AT) for model in twins(profile, own.depths)]


def draw(rows: RowsByTable) -> Artefact:
    """ASR over depth."""
    return draw_asr(rows["attack"], "figure-3b", "AutoAttack")


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffViT gains robustness with depth."""
    source = "Section 5.2, Figure 3(b)"
    return each_data(rows["attack"], lambda attacks: asr_claims(attacks, "AutoAttack", source))


study = Study(
    "figure-3b",
    "robustness",
    "Figure 3(b)",
    "ASR under AutoAttack by depth",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
