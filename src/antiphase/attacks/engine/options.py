"""Options that every attack takes in addition to its own parameters, and their defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from jaxtyping import Int64
from torch import Tensor

from antiphase.arguments import Count, Seed, Size, validated
from antiphase.precision import Precision

Finished = Callable[[Tensor, dict[str, Tensor]], None]


class RunOptions(TypedDict, total=False):
    """Keyword arguments of every attack; see :class:`Run` for meaning and defaults."""

    seed: Seed
    ids: Int64[Tensor, " samples"] | None
    context: Tensor | None
    goal: int | Int64[Tensor, " samples"] | None
    batch_size: Size | None
    early_stop: bool
    precision: Precision
    compile: bool
    passes: Count
    progress: bool | str
    on_finished: Finished | None


@validated
@dataclass(frozen=True)
class Run:
    """Set how an attack is executed.

    Attributes:
        seed: random seed, from 0 to 2⁶³ − 1.
        ids: one unique int64 per sample, the key of its random stream; positions by default.
        context: one row per sample that the model takes as its second argument, such as the question asked about each
            image; None: it takes images alone.
        goal: attack towards this class, or one for each sample: success is the prediction of the goal. Losses and
            boundaries are then those of two logits, the largest of the other classes and the goal's. Labels must be
            None; not for ensembles and sweeps.
        batch_size: searches run at once; does not affect results. The model sees a multiple of 16 images,
            or 1, 2, 4 or 8 where it was seen to give bitwise the same for them.
        early_stop: stop a sample at its first confirmed adversarial example. Otherwise all steps are taken and the best
            example is kept.
        precision: precision of the search, ``"float32"`` or ``"bf16"`` (autocast). Successes are confirmed in float32
            in both, and bf16 searches that fail within rounding error are repeated in float32. FAB takes its last
            steps in float32, Carlini-Wagner all of them, and Square confirms each possible improvement in float32.
        compile: run the search on the ``torch.compile``-d model; successes are confirmed on the original.
        passes: for randomised models, forward passes whose mean logits are attacked (A. Athalye, N. Carlini, D. Wagner,
            *Obfuscated Gradients Give a False Sense of Security*, ICML 2018, Section 4.2).
        progress: show a progress bar on stderr, with this text if one is given.
        on_finished: called with the positions of newly finished samples and the result arrays so far.

    Raises:
        UserError: The batch size or number of passes is below 1, or the precision is unknown.
    """

    seed: Seed = 0
    ids: Tensor | None = None
    context: Tensor | None = None
    goal: int | Tensor | None = None
    batch_size: Size | None = None
    early_stop: bool = True
    precision: Precision = "float32"
    compile: bool = False
    passes: Count = 1
    progress: bool | str = False
    on_finished: Finished | None = None


def read_options(options: Mapping[str, Any], attack: str) -> Run:
    """Validate the options of an attack.

    Args:
        options: options as given to the attack.
        attack: name of the attack, for error messages.

    Raises:
        TypeError: An option is unknown.
        UserError: A value is out of range.
    """
    known = [field.name for field in fields(Run)]
    if odd := [name for name in options if name not in known]:
        raise TypeError(
            f"attack {attack}: unexpected keyword argument {odd[0]!r}; expected a parameter of the attack or one of "
            f"{', '.join(known)}"
        )
    return Run(**options)


def of_samples(run: RunOptions, ids: Int64[Tensor, " samples"], at: Int64[Tensor, " some"]) -> RunOptions:
    """Return the options for the samples at some positions.

    Args:
        run: options for all samples.
        ids: of all samples.
        at: positions.
    """
    some: RunOptions = {**run, "ids": ids[at]}
    if (context := run.get("context")) is not None:
        some["context"] = context[at]
    return some
