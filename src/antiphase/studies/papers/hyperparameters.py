"""Hyperparameters printed in the papers, transcribed independently of the studies for comparison by a dry run.

Each line gives the values of a study's cells under the profile ``paper``: all of them (``exact``) or at least these.
Names are those of :func:`antiphase.studies.facts.facts_of`.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Line:
    """One setting.

    Attributes:
        name: name of the fact, such as ``"train.epochs"``.
        values: values in the paper.
        source: section of the paper.
        exact: whether the study must have no other values.
    """

    name: str
    values: tuple[Any, ...]
    source: str
    exact: bool = True


_C1, _C2 = "Appendix C.1", "Appendix C.2"
_RECIPE = (
    Line("train.optimizer", ("adam",), _C1),
    Line("train.learning_rate", (5e-4,), _C1),
    Line("train.batch_size", (128,), _C1),
    Line("train.initial_lambda", (0.8,), "Section 5.1"),
)
_CIFAR = (Line("train.data", ("cifar10", "cifar100"), "Section 5.1"), Line("train.epochs", (100, 300), _C1))
_BOTH = (Line("train.attention", ("softmax", "differential"), "Section 5.1"),)
_ONE = (Line("train.depth", (1,), "Section 5.1"),)
_DEPTHS = (Line("train.depth", (1, 2, 4, 8, 12), "Section 5.1"),)
_PGD = (Line("attack.name", ("pgd",), _C2), Line("attack.norm", ("linf",), _C2))
_BALL = (Line("sense.eps", (8 / 255,), "Section 5.3"),)


def _eps(*of_255: float) -> Line:
    return Line("attack.eps_255", tuple(of_255), "the artefact", exact=False)


ROBUSTNESS: dict[str, tuple[Line, ...]] = {
    "table-1": (
        *(line for line in _RECIPE if line.name != "train.initial_lambda"), *_ONE, *_PGD, _eps(1),
        Line("train.data", ("cifar10",), "Table 1"), Line("train.epochs", (100,), _C1),
        Line("train.attention", ("differential",), "Table 1"),
        Line("train.initial_lambda", (0.5, 0.7, 0.8, 0.85, 0.9, 0.95), "Table 1"),
    ),
    "table-2": (
        *_RECIPE, *_BOTH, _eps(4, 2, 1, 0.5),
        Line("train.data", ("tiny-imagenet",), "Section 5.1"), Line("train.depth", (4,), "Section 5.1"),
        Line("attack.name", ("pgd", "patch"), "Table 2"), Line("attack.width", (8, 4, 2), "Table 2"),
    ),
    "table-3": (
        *_RECIPE, *_BOTH, *_ONE, *_PGD, Line("train.data", ("cifar10",), "Table 3"), Line("train.epochs", (100,), _C1),
        Line("train.adversarial_eps_255", (0.25, 0.5, 1.0), "Table 3"), _eps(0.25, 0.5, 1),
    ),
    "figure-2a": (*_RECIPE, *_CIFAR, *_BOTH, *_ONE, *_PGD, _eps(1, 4)),
    "figure-2c": (
        *_RECIPE, *_CIFAR, *_BOTH, *_ONE, Line("attack.name", ("patch",), "Figure 2(c)"),
        Line("attack.eps_255", (255.0,), "Appendix C.2.1: ε = 1"),
    ),
    "figure-3a": (*_RECIPE, *_CIFAR, *_BOTH, *_DEPTHS, *_PGD, _eps(1, 4)),
    "figure-3b": (
        *_RECIPE, *_CIFAR, *_BOTH, *_DEPTHS, Line("attack.name", ("autoattack",), "Figure 3(b)"),
        Line("attack.stages", ("apgd-ce", "apgd-dlr", "fab", "square"), "Appendix C.2.2"),
        Line("attack.norm", ("linf",), "Section 5.1"), _eps(1, 4),
    ),
    "figure-3c": (
        *_RECIPE, *_CIFAR, *_BOTH, *_DEPTHS, Line("attack.name", ("carlini-wagner",), "Figure 3(c)"),
        Line("attack.norm", ("l2",), "Section 5.1"), Line("attack.steps", (1000,), "the repository of Appendix C.2.3"),
        Line("attack.search_steps", (5,), "the repository of Appendix C.2.3"),
    ),
    "figure-3d": (*_RECIPE, *_CIFAR, *_BOTH, *_DEPTHS, *_BALL, Line("sense.part", ("lipschitz",), "Section 5.3")),
    "figure-4": (*_RECIPE, *_CIFAR, *_BOTH, *_DEPTHS, *_BALL, Line("sense.part", ("lipschitz",), "Section 5.3")),
    "figure-5": (
        *_RECIPE, *_CIFAR, *_DEPTHS, Line("train.attention", ("differential",), "Section 5.4"),
        Line("sense.part", ("alignment",), "Section 5.4"),
    ),
    "layer-sensitivity": (
        *_RECIPE, *_CIFAR, *_BOTH, *_DEPTHS, *_BALL,
        Line("sense.part", ("alignment", "lipschitz", "depth"), "Section 4"),
    ),
    "causes": (
        *_RECIPE, Line("train.data", ("cifar10", "cifar100"), "Section 5.1"), *_ONE, _eps(1, 4),
        Line("train.epochs", (100, 300), _C1, exact=False), Line("train.attention", ("softmax", "differential"),
        "Section 5.1", exact=False), Line("attack.name", ("pgd",), _C2, exact=False), _PGD[1],
    ),
    "figure-6": (
        *_RECIPE, *_CIFAR, *_BOTH, *_ONE, *_PGD, Line("attack.restarts", (1, 3), "Appendix D.3"), _eps(1, 4),
    ),
}  # fmt: skip

_SETUP = "DiffCLIP, Section 4.1"
_CLIP = (
    Line("clip.epochs", (40,), _SETUP),
    Line("clip.batch_size", (4096,), _SETUP),
    Line("clip.image", ("224 pixels, patches of 16, 768 wide, 12 layers, 12 heads",), f"{_SETUP}: CLIP-B/16"),
    Line("clip.text", ("77 tokens, 512 wide, 12 layers, 8 heads",), "SynthCLIP's code"),
    Line("clip.learning_rate", (5e-4,), "SLIP's recipe, which the paper follows"),
    Line("clip.weight_decay", (0.5,), "SLIP's recipe"),
    Line("clip.betas", ((0.9, 0.98),), "SLIP's recipe"),
    Line("clip.warmup_epochs", (1.0,), "SLIP's recipe"),
    Line("clip.crop", ((0.5, 1.0),), "SLIP's recipe"),
)
_SETS = (Line("clip.data", ("cc3m", "cc12m"), _SETUP),)
_CC12M = (Line("clip.data", ("cc12m",), "the artefact"),)
_TWINS = (
    Line("clip.parameters", (149_619_969, 149_629_185), "the released models"),
    Line("clip.lambda_init", (0.8,), "Section 4.5"),
)
_NINE = (
    "food101", "cifar10", "cifar100", "sun397", "aircraft", "dtd", "pets", "caltech101", "flowers102",
)  # fmt: skip
_FEW_SHOT = (
    Line("few-shot.data", _NINE, "Table 1"), Line("few-shot.ways", (5,), "lgssl"),
    Line("few-shot.shots", (5,), "lgssl"), Line("few-shot.episodes", (5000,), "lgssl"),
)  # fmt: skip
_PROBE = (Line("probe.data", _NINE, "Table 1"), Line("probe.space", ("raw",), "lgssl"))
_THREE = "Appendix B: three seeds"
_SHIFTS = ("imagenet", "imagenet-v2", "imagenet-a", "imagenet-r", "imagenet-sketch")
_RETRIEVED = (Line("retrieval.data", ("flickr30k", "flickr8k", "coco-karpathy"), "Table 2"),)

DIFFCLIP: dict[str, tuple[Line, ...]] = {
    "diffclip-table-1": (*_CLIP, *_SETS, *_TWINS, *_PROBE, *_FEW_SHOT),
    "diffclip-table-2": (*_CLIP, *_SETS, *_TWINS, *_RETRIEVED, Line("zero-shot.data", ("imagenet",), "Table 2")),
    "diffclip-table-4": (*_CLIP, *_SETS, *_TWINS, *_PROBE, Line("probe.seeds", (3,), _THREE)),
    "diffclip-table-5": (*_CLIP, *_SETS, *_TWINS, *_FEW_SHOT, Line("few-shot.seeds", (3,), _THREE)),
    "diffclip-figure-3": (*_CLIP, *_SETS, *_TWINS, Line("zero-shot.data", _SHIFTS, "Figure 3")),
    "diffclip-figure-4": (*_CLIP, *_CC12M, *_TWINS, Line("mmvp.data", ("mmvp",), "Section 4.4")),
    "diffclip-figure-5": (
        *_CLIP, *_CC12M, *_PROBE, *_FEW_SHOT, *_RETRIEVED, Line("zero-shot.data", _SHIFTS, "Figure 5"),
        Line("clip.parameters", (149_619_969, 149_629_185, 149_624_577), "the released models; vision only +4,608"),
        Line("clip.lambda_init", (0.8, "depth"), "Sections 4.5, 4.6"),
    ),
    "diffclip-attention": (*_CLIP, *_CC12M, *_TWINS),
}  # fmt: skip

_GIVEN = Line(
    "given.spec", ("diffclip:hammh0a/DiffCLIP_ViTB16_CC12M#lambda_init=0.8",), "Appendix C.1", exact=False
)
_COSINE = (
    Line("attack.objective", ("cosine",), "Appendix C.2.1"),
    Line("attack.data", ("coco", "imagenet"), "Section 5.1"),
)
ROBUSTNESS |= {
    "figure-2b": (_GIVEN, *_COSINE, *_PGD, _eps(1, 4)),
    "figure-2d": (
        _GIVEN, *_COSINE, Line("attack.name", ("patch",), "Figure 2(d)"),
        Line("attack.eps_255", (255.0,), "Appendix C.2.1: ε = 1"),
    ),
}  # fmt: skip
for _name in ("figure-4", "figure-5"):
    ROBUSTNESS[_name] = (*ROBUSTNESS[_name], _GIVEN)
