"""What every attack takes beside its own parameters, and what stands for what is not given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from jaxtyping import Int64
from torch import Tensor

from antiphase.attacks.engine.inputs import check_counts
from antiphase.errors import UserError
from antiphase.precision import Precision

Finished = Callable[[Tensor, dict[str, Tensor]], None]


class RunOptions(TypedDict, total=False):
    """Keyword arguments that every attack accepts; their meaning and defaults are those of :class:`Run`."""

    seed: int
    ids: Int64[Tensor, " samples"] | None
    batch_size: int | None
    early_stop: bool
    precision: Precision
    compile: bool
    passes: int
    progress: bool | str
    on_finished: Finished | None


@dataclass(frozen=True)
class Run:
    """How a search is carried out.

    Attributes:
        seed: of every random draw.
        ids: one int64 a sample, none twice, the key of its random stream; positions where not given.
        batch_size: how many searches run at once; does not affect verdicts. The model sees a multiple of 16 rows.
        early_stop: whether a sample ends at its first confirmed adversarial example; if not, the whole
            budget is spent and the best example is kept.
        precision: of the search: ``"float32"``, or ``"bf16"`` for the passes that torch autocasts. Verdicts
            are confirmed in float32 either way, and a search that fails in bf16 by no more than its rounding is
            made again in float32. Of the attacks that follow the boundary, FAB ends in float32, and Carlini and
            Wagner's is in float32 throughout; Square asks float32 about all that may be a gain.
        compile: whether the search asks a ``torch.compile``-d model. Verdicts come from the model as it is.
        passes: of a randomised model for one answer, whose mean logits are attacked and judged (A. Athalye, N. Carlini,
            D. Wagner, *Obfuscated Gradients Give a False Sense of Security*, ICML 2018, Section 4.2).
        progress: whether to show a progress bar on stderr; a text is shown beside it.
        on_finished: called with the positions of samples whose verdict has just become known, and the
            arrays of the result so far.

    Raises:
        UserError: for a batch size or passes below 1, or an unknown precision.
    """

    seed: int = 0
    ids: Tensor | None = None
    batch_size: int | None = None
    early_stop: bool = True
    precision: Precision = "float32"
    compile: bool = False
    passes: int = 1
    progress: bool | str = False
    on_finished: Finished | None = None

    def __post_init__(self) -> None:
        check_counts(batch_size=self.batch_size, passes=self.passes)
        if self.precision not in ("float32", "bf16"):
            raise UserError(f"precision {self.precision!r}: expected 'float32' or 'bf16'")


def read_options(options: Mapping[str, Any], attack: str) -> Run:
    """Return the options of a run.

    Args:
        options: as the attack was given them.
        attack: its name, for the message.

    Raises:
        TypeError: there is one that no attack takes.
        UserError: a value is out of range.
    """
    known = [field.name for field in fields(Run)]
    if odd := [name for name in options if name not in known]:
        raise TypeError(
            f"attack {attack}: unexpected keyword argument {odd[0]!r}; expected one of its own parameters or "
            f"{', '.join(known)}"
        )
    return Run(**options)
