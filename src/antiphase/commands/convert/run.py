"""What ``antiphase convert`` does, and its Python function."""

from pathlib import Path
from typing import Any

from torch import nn

from antiphase.commands.convert import ConvertOptions
from antiphase.commands.run_folder import run_folder
from antiphase.models import load_model, write_model
from antiphase.models.convert import converted
from antiphase.terminal import say


def convert(model: str | nn.Module, to: str, *, out: str | Path | None = None, **options: Any) -> nn.Module:
    """Return a model with standard attention as a differential one with the same outputs, as ``antiphase convert`` does.

    ``model`` is a specification or a loaded model. With ``out`` it is written as a run directory and loaded from there.
    ``options`` are the command's; see :func:`antiphase.models.convert.converted`.
    """
    is_name = isinstance(model, str)
    chosen = ConvertOptions(model=model if is_name else "given", to=to, out=out or "-", **options)
    if isinstance(model, str):
        model = load_model(model, random_weights=chosen.random_weights, seed=chosen.seed)
    new = converted(model, to, ratio=chosen.ratio, towers=chosen.towers, seed=chosen.seed)
    if out is None:
        return new
    with run_folder(chosen.out, "convert"):
        write_model(new, chosen.out)
    return load_model(str(chosen.out))


def answer(options: ConvertOptions, _: str) -> dict[str, Any]:
    """Write the converted model; return where it is, its λ at the start, and from what it was made."""
    new: Any = convert(**options.model_dump())
    say(f"{options.out}: {options.model} with {options.to} attention and the same outputs")
    return {"out": str(options.out), "source": options.model, "to": options.to, "card": new.card.attention}
