"""Attacks on models and their twins: ``antiphase audit``, ``attack`` and ``quickstart``."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field

from antiphase.commands import options as fields
from antiphase.commands.command import Command
from antiphase.errors import UserError, shown
from antiphase.precision import SearchPrecision
from antiphase.registry import ATTACKS, QUESTIONS, find
from antiphase.terminal import eps_label

if TYPE_CHECKING:
    from antiphase.attacks.catalogue import AttackSpec
    from antiphase.attacks.sweep import Ensemble

_EPS = (
    "Perturbation budgets ε in units of the [0, 1] pixel range, separated by commas; fractions such as 1/255 are "
    "accepted. The default is for linf; with another norm, 8/255 becomes 0.5 (l2) or 12 (l1) for images of at most 32 "
    "pixels a side, 3 (l2) for 224 and more, and the others shrink alike. Else give --eps."
)
Eps = Annotated[fields.Numbers, Field(description=_EPS)]
# by norm: the least and the largest side, and the ε that stands for 8/255. CIFAR-10's in RobustBench (l2) and in Croce
# and Hein's "Mind the Box" (l1), ImageNet's in Engstrom et al.'s robustness library (l2); for l0 there is none
_USUAL = {"l2": ((1, 32, 0.5), (224, math.inf, 3.0)), "l1": ((1, 32, 12.0),)}
WORST = "worst of "  # begins the name of the worst case of several attacks


def _each_known(names: str) -> str:
    words = fields.read_words(names)
    for name in words or [names]:
        if name not in ATTACKS or words.count(name) > 1:
            raise UserError(f"attack {shown(name)}: expected one of {', '.join(ATTACKS)}, or several, each once")
    return ",".join(words)


_ATTACKS = (
    f"Attack to run: {', '.join(ATTACKS)}. Several, separated by commas, each attack every image; the worst case of an "
    "image is that any of them breaks it. --steps and other settings go to those that have them."
)
AttackNames = Annotated[
    str,
    BeforeValidator(lambda value: ",".join(map(str, value)) if isinstance(value, list | tuple) else value),
    AfterValidator(_each_known),
    fields.Typed(metavar="ATTACK,…", text=str),
    Field(description=_ATTACKS),
]


class Gate(NamedTuple):
    """A least robust accuracy at an ε, or its interval's lower end (``low``)."""

    text: str
    share: float
    eps: float
    low: bool


_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_GATE = re.compile(
    rf"robust(?P<low>\s+low)?\s+(?P<percent>{_NUMBER})\s*%(\s*@\s*(?P<above>{_NUMBER})(/(?P<below>{_NUMBER}))?)?"
)


def read_gates(texts: Sequence[str], eps: Sequence[float]) -> list[Gate]:
    """Read the conditions of ``fail_under``, such as ``robust low 40% @ 1/255``, whose ε are among those attacked."""
    gates, attacked = [], ", ".join(map(eps_label, eps))
    for text in texts:
        named, match = f"fail-under {shown(text)}", _GATE.fullmatch(text.strip())
        if match is None or float(match["percent"]) > 100:
            raise UserError(f"{named}: expected 'robust 40% @ 1/255' or 'robust low 40% @ 1/255', at most 100%")
        if match["above"] is None and len(eps) > 1:
            raise UserError(f"{named}: does not say at which ε; expected @ and one of {attacked}")
        below = float(match["below"] or 1) or math.nan
        gate_eps = eps[0] if match["above"] is None else float(match["above"]) / below
        if not (near := [one for one in eps if math.isclose(one, gate_eps, rel_tol=1e-9)]):
            raise UserError(f"{named}: this ε is not attacked; expected one of {attacked}")
        gates.append(Gate(text.strip(), float(match["percent"]) / 100, near[0], match["low"] is not None))
    return gates


_NOT_OF_QUESTIONS = ("classes", "prompt", "sense_limit", "skip_bad", "random_weights", "fail_under")
_NOT_OF_QUESTIONS += ("image_size", "resize", "seeds")
_SETTINGS = ("version", "steps", "restarts", "queries", "width", "objective")  # with an option of their own


class AuditOptions(fields.Measurement):
    """Attack a model, and its twin on the same images; write rows, summary.json, report.html and a card.

    The card, ``card.json`` and ``CARD.md``, is for publishing: ``antiphase verify`` checks it. The same command resumes
    a killed audit. Under torchrun the processes share the images.

    **Examples**

    antiphase audit specimen:diffvit-0 --against specimen:vit-0
    antiphase audit runs/diffvit --against runs/vit --eps 1/255,4/255 --limit 500
    antiphase audit runs/diffvit --against runs/vit --set momentum=0.9 --set step_size=1/255
    antiphase audit runs/diffclip --against runs/clip --data openmoji --objective cosine
    antiphase audit runs/vlm-diffclip --against runs/vlm-clip --data emoji-pope --attack apgd-ce --eps 2/255,4/255
    antiphase audit runs/diffvit --against runs/vit --attack pgd,square,autoattack
    antiphase audit timm:vit_tiny_patch16_224 --random-weights --data random --limit 8
    antiphase audit timm:vit_small_patch16_224 --data folder:PHOTOS --skip-bad
    """

    against: fields.Against = ()
    seeds: fields.Seeds = ()
    classes: fields.Classes = None
    limit: fields.Limit = 1000
    eps: Eps = (0.5 / 255, 1 / 255, 2 / 255, 4 / 255, 8 / 255)
    norm: Literal["linf", "l2", "l1", "l0"] = "linf"
    """Norm of the perturbation."""
    attack: AttackNames = "pgd"
    version: Literal["standard", "malt", "plus", "rand", "2020"] | None = None
    """AutoAttack: set of attacks. standard: APGD-CE, APGD-T, FAB-T, Square. 2020: APGD-CE, APGD-DLR, FAB, Square. plus:
    all six, with restarts. malt: standard with MALT's targets, for many classes. rand: for randomised models."""
    steps: int | None = Field(None, ge=1, le=10**8)
    """Steps of the attack. If not given: the attack's own number (PGD: 20 steps of size ε/4)."""
    restarts: int | None = Field(None, ge=1)
    """Random restarts per sample. If not given: 1."""
    queries: int | None = Field(None, ge=1)
    """Square: forward passes per sample. If not given: 5,000."""
    width: int | None = Field(None, ge=1)
    """Patch: side of the square in pixels. If not given: 8."""
    objective: Literal["cross_entropy", "margin", "dlr", "probability_margin", "cosine"] | None = None
    """Loss that PGD, FGSM, APGD, Square and patch maximise; cosine (CLIP only) lowers the similarity to the prompt of
    the image's class. If not given: the attack's own."""
    settings: Annotated[
        dict[str, Any], BeforeValidator(fields.read_settings), fields.Typed(flags=("--set",), metavar="NAME=VALUE")
    ] = Field(default_factory=dict)
    """Setting of the attack, such as momentum=0.9; repeat for several. A name that the attack does not have is refused
    with those that it has."""
    nested: Literal["up", "down", "off"] = "up"
    """How samples carry over from one ε to the next. up: a sample broken at one ε counts as broken at every larger one.
    down: start at the largest ε and retry only the broken samples at the next smaller one; faster if most samples are
    robust. off: attack every ε independently."""
    control: bool = False
    """Also add random noise of the same ε, to compare with the attack."""
    sense_limit: int = Field(32, ge=0)
    """Images on which to measure how the gradients of the attention maps A1 and A2 align; 0: none."""
    fail_under: Annotated[tuple[str, ...], BeforeValidator(fields.as_tuple), fields.Typed(metavar="CONDITION")] = ()
    """End with exit code 1 if the robust accuracy of a model is lower, such as 'robust 40% @ 1/255'; 'robust low 40% @
    1/255' asks for the lower end of its 95 % interval. Repeat for several. The worst case counts, and no twins."""
    precision: SearchPrecision = "auto"
    """Precision of the search; auto: the faster one, measured once for each architecture and machine. Every success is
    confirmed in float32."""
    compile: bool = False
    """Run the search on the model compiled by torch.compile, which needs a C++ compiler on a CPU."""
    out: fields.Out = Path("antiphase-audit")
    suffix: fields.Suffix = ""
    batch_size: fields.BatchSize = None

    def model_post_init(self, context: Any, /) -> None:
        for eps in self.eps:
            if not 0 < eps < math.inf:
                raise UserError(f"eps {eps_label(eps)}: expected a positive number, in units of the [0, 1] pixel range")
        if not self._usual:
            read_gates(self.fail_under, self.eps)
        elif self.norm == "l0" or self.questions:
            why = f"norm {self.norm} has no usual one" if self.norm == "l0" else "the default is for linf"
            raise UserError(f"eps: is missing; {why}, give --eps")
        if self.suffix and not self.questions:
            raise UserError(f"suffix: is for questions; leave it out, or give --data {' or '.join(QUESTIONS)}")
        names = [name for name in _NOT_OF_QUESTIONS if self.typed(name) and getattr(self, name)]
        for name in names + ["objective"] * (self.objective == "cosine") if self.questions else ():
            why = f"is not for questions such as {self.data}; leave out --{name.replace('_', '-')}"
            raise UserError(f"{name} {getattr(self, name)}: {why}")

    @property
    def _usual(self) -> bool:
        """Whether ε depends on the images, as neither the caller nor a file gave it for another norm than linf."""
        return self.norm != "linf" and "eps" not in self.model_fields_set

    def for_images(self, shape: Sequence[int]) -> Self:
        """Return the options with the norm's usual ε for images of a shape, if ε was not given."""
        if not self._usual:
            return self
        side = max(shape[1:])
        if not (at_8 := [eps for least, most, eps in _USUAL[self.norm] if least <= side <= most]):
            raise UserError(f"eps: is missing; norm {self.norm} has no usual one for {side} pixels a side, give --eps")
        options = self.model_copy(update={"eps": tuple(eps / (8 / 255) * at_8[0] for eps in self.eps)})
        read_gates(options.fail_under, options.eps)
        return options

    @property
    def questions(self) -> str:
        """Name of the questions that the data are; empty for images."""
        name = str(self.data).partition(":")[0]
        return name if name in QUESTIONS else ""

    @property
    def names(self) -> list[str]:
        """The attacks, controls last."""
        return sorted(self.attack.split(","), key=lambda name: find(ATTACKS, name, "attack").control is None)

    @property
    def ensemble(self) -> "Ensemble":
        """The attack with its settings; those that are text get the types of its signature."""
        from antiphase.attacks.catalogue import find_attack, parse_settings

        texts = [f"{name}={value}" for name, value in self.settings.items() if isinstance(value, str)]
        typed = parse_settings(self.attack, texts) if texts else {}
        return find_attack(self.attack, **self.settings | typed | self.chosen(*_SETTINGS))

    @property
    def minimal(self) -> bool:
        """Whether the attack only looks for the nearest adversarial example: ε plays no part in the search."""
        return self.nested != "off" and self.ensemble.minimal

    @property
    def _specs(self) -> "dict[str, AttackSpec]":
        return {name: find(ATTACKS, name, "attack") for name in self.names}

    @property
    def controls(self) -> list[str]:
        """The attacks that show what these add to them; none for one that is a control itself."""
        return list(dict.fromkeys(spec.control for spec in self._specs.values() if spec.control))

    @property
    def worst_case(self) -> list[str]:
        """The attacks of which every image has a worst case: several that are no controls, or none."""
        attacks = [name for name, spec in self._specs.items() if spec.control is not None]
        return attacks if len(attacks) > 1 else []

    def each_attack(self) -> list[Self]:
        """Return the options of each attack, with those of the settings that it has."""
        from antiphase.attacks.catalogue import keywords

        if len(self.names) == 1:
            return [self]
        known = {name: keywords(spec.attack) for name, spec in self._specs.items()}
        for setting in (*self.chosen(*_SETTINGS), *self.settings):
            if not any(setting in settings for settings in known.values()):
                raise UserError(f"attack {self.attack!r}: none of them has a setting {setting!r}; leave it out")
        options = []
        for name, settings in known.items():
            defaults = {setting: None for setting in _SETTINGS if setting not in settings}
            kept = {key: value for key, value in self.settings.items() if key in settings}
            options.append(self.model_copy(update={"attack": name, **defaults, "settings": kept}))
        return options

    def with_control(self) -> list[Self]:
        """Return the options of each attack, and of its control if that is wanted."""
        plain = dict.fromkeys(_SETTINGS) | {"settings": {}}
        controls = [name for name in self.controls if self.control and name not in self.names]
        return [*self.each_attack(), *(self.model_copy(update={"attack": one, **plain}) for one in controls)]


class AttackOptions(AuditOptions):
    """Attack a model, or several, with any attack or ensemble; write rows, summary.json and report.html.

    The same command resumes a killed attack. Under torchrun the processes share the images.

    **Examples**

    antiphase attack specimen:diffvit-0 --attack autoattack --eps 1/255 --limit 100
    antiphase attack specimen:vit-0 --attack patch --width 6 --eps 1
    antiphase attack runs/vit --attack carlini-wagner --norm l2 --eps 0.5,1 --set initial_const=0.1
    antiphase attack runs/vit --attack pgd,square --eps 1/255,4/255 --fail-under "robust 40% @ 1/255"
    torchrun --nproc-per-node 4 -m antiphase attack timm:vit_small_patch16_224 --data imagenet --eps 1/255
    """

    left_out: ClassVar = ("against", "sense_limit")

    attack: AttackNames = "autoattack"
    eps: Eps = (8 / 255,)
    sense_limit: int = Field(0, ge=0)
    out: fields.Out = Path("antiphase-attack")


_OFFERED = {"out", "eps", "limit", "seed", "device", "quiet"}  # by quickstart


class QuickstartOptions(AuditOptions):
    """Attack the bundled models on bundled images of Fashion-MNIST.

    No download, no training: eight ViTs and their differential twins under PGD at four budgets.

    **Examples**

    antiphase quickstart
    antiphase quickstart --eps 1/255,2/255 --limit 1000 --out my-run
    """

    left_out: ClassVar = tuple(AuditOptions.model_fields.keys() - _OFFERED)

    model: fields.Model = tuple(f"specimen:diffvit-{seed}" for seed in range(8))
    against: fields.Against = tuple(f"specimen:vit-{seed}" for seed in range(8))
    data: str | None = "specimen-fashion-mnist"
    sense_limit: int = Field(8, ge=0)
    out: fields.Out = Path("antiphase-quickstart")
    eps: Eps = (1 / 255, 2 / 255, 4 / 255, 8 / 255)
    limit: int | None = Field(250, ge=1)
    """At most N of the 1,000 images."""


_RUN, _RESULT = "antiphase.commands.audit.run:run", "antiphase.commands.audit.result:AuditResult"
_OPTIONS = {"audit": AuditOptions, "attack": AttackOptions, "quickstart": QuickstartOptions}
COMMANDS = {name: Command(name, options, _RUN, _RESULT) for name, options in _OPTIONS.items()}
