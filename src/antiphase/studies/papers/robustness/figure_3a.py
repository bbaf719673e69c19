"""ASR of ViT and DiffViT under PGD by depth: 1, 2, 4, 8 and 12 layers.

The paper (Section 5.2, Figure 3(a)): at ε = 1/255 DiffViT's ASR is highest at depth 1 and falls with depth, below
ViT's; at 4/255 both saturate at a high ASR. The numbers are only drawn.

The text does not say what sets panels (a) and (b) apart. The caption, "(a) (b) Under PGD and AutoAttack …", suggests
the attack; Section 5.2 cites only Figure 3(a) for both attacks at 1/255, which suggests ε. All four combinations are
drawn: PGD at 1/255 and 4/255 here, AutoAttack at both in ``figure-3b``. "Saturate" is read as an ASR above 90 % at the
largest depth.

| profile | models | cost |
|---|---|---|
| paper | 60, CIFAR-10 and CIFAR-100 | not run |
| laptop | 124, Fashion-MNIST | 176 core-minutes, 131 of them training |

antiphase study run figure-3a --profile laptop
"""

from antiphase.studies.claims import Claim
from antiphase.studies.figures import Artefact
from antiphase.studies.papers.robustness.bench import all_cells, bench, settings, twins
from antiphase.studies.papers.robustness.by_depth import asr_claims, draw_asr
from antiphase.studies.papers.robustness.show import each_data
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study


def cells(profile: Profile) -> list[Cell]:
    """PGD at every ε on models of every depth."""
    own = bench(profile)
    models = twins(profile, own.depths)
    return all_cells([own.attack(model) for model in models], [own.accuracy(model) for model in models])


def draw(rows: RowsByTable) -> Artefact:
    """ASR over depth."""
    return draw_asr(rows["attack"], "figure-3a", "PGD")


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffViT gains robustness with depth."""
    source = "Section 5.2, Figure 3(a)"
    return each_data(rows["attack"], lambda attacks: asr_claims(attacks, "PGD", source))


study = Study(
    "figure-3a", "robustness", "Figure 3(a)", "ASR under PGD by depth", __doc__, cells, draw, claims, settings
)
