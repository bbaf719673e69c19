"""``antiphase check``: whether a module computes differential attention, and what is off."""

from typing import Annotated

from pydantic import Field

from antiphase.commands.command import Command
from antiphase.commands.options import Options, Typed


class CheckOptions(Options):
    """Say whether a module computes differential attention, which variant it is, and what is off.

    The module is run on random tokens, or a model on random images. Exit code: 0 if all attention is differential and
    nothing is off; 1 if something is off, or attention is another or not recognised; 2 for invalid input.

    **Examples**

    antiphase check "python:attention.py:DiffAttention?dim=64,depth=0"
    antiphase check python:model.py:build --json
    """

    model: Annotated[str, Typed(argument=True, metavar="MODULE")]
    """python:FILE:CALLABLE (runs your code), with arguments after a question mark; what it returns takes tokens
    (batch, tokens, dim) or images. Other models as for antiphase sense."""
    layer: int | None = Field(None, ge=0)
    """Index, from 0, of the layer that the attention is made for. If not given: its argument depth, layer_idx or
    similar; layers of a model are counted."""
    dim: int | None = Field(None, ge=1, le=65536)
    """Width of the tokens. If not given: found from the shapes of the parameters."""
    tokens: int = Field(13, ge=4, le=4096)
    """Number of tokens."""


COMMAND = Command("check", CheckOptions, "antiphase.commands.check.run:answer")
