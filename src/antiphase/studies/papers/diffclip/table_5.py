"""Few-shot accuracy: spread over three evaluation seeds, compared with the spread over training seeds.

The paper (Appendix B, Table 5; percent, mean ± standard deviation over three seeds of the evaluation, one training each)
compares DiffCLIP's gain with the variation of the evaluation.

| task | pretraining | model | caltech101 | dtd | pets | flowers102 | sun397 | aircraft | cifar10 | cifar100 | food101 | Avg. |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
| few-shot | CC3M | CLIP | 90.3 ± 0.4 | 72.5 ± 0.5 | 70.6 ± 0.2 | 92.6 ± 0.4 | 91.7 ± 0.1 | 44.6 ± 0.3 | 63.6 ± 0.2 | 72.6 ± 0.3 | 66.9 ± 0.5 | 73.9 ± 0.1 |
| few-shot | CC3M | DiffCLIP | 91.4 ± 0.3 | 72.9 ± 0.5 | 72.6 ± 0.2 | 93.0 ± 0.3 | 92.7 ± 0.2 | 45.3 ± 0.3 | 62.6 ± 0.2 | 73.2 ± 0.4 | 68.3 ± 0.3 | 74.7 ± 0.1 |
| few-shot | CC12M | CLIP | 97.3 ± 0.1 | 81.9 ± 0.4 | 86.8 ± 0.2 | 96.5 ± 0.3 | 96.5 ± 0.2 | 56.5 ± 0.3 | 80.7 ± 0.2 | 84.8 ± 0.2 | 86.1 ± 0.1 | 85.2 ± 0.0 |
| few-shot | CC12M | DiffCLIP | 97.6 ± 0.1 | 82.2 ± 0.4 | 88.6 ± 0.3 | 97.1 ± 0.2 | 96.6 ± 0.1 | 55.1 ± 0.2 | 79.8 ± 0.1 | 83.2 ± 0.2 | 87.4 ± 0.1 | 85.3 ± 0.0 |

The evaluation seed draws the episodes, which are the same for every model. A gain larger than this spread may still be
due to the training seed: the second rows show the spread over training seeds.

| profile | models | cost |
|---|---|---|
| paper | 12, CC3M and CC12M | those of Table 1 |
| laptop | 16, OpenMoji | the trainings of Table 2, seconds of episodes |

antiphase study run diffclip-table-5 --profile laptop
"""  # noqa: E501 (as the paper prints it)

from antiphase.studies.papers.diffclip.show import published
from antiphase.studies.papers.diffclip.spread import spread_study

PAPER = published(__doc__)

study = spread_study(
    "few-shot", "Table 5", "Few-shot over seeds", "Few-shot (5-way 5-shot), accuracy", __doc__, PAPER
)
