"""What ``antiphase convert`` does, and its Python function."""

from pathlib import Path
from typing import Any

from torch import nn

from antiphase.commands.convert import ConvertOptions
from antiphase.commands.run_folder import run_folder
from antiphase.models import load_model, write_model
from antiphase.models.convert import converted
from antiphase.terminal import say


def convert(
    model: str | nn.Module,
    to: str,
    *,
    out: str | Path | None = None,
    random_weights: bool = False,
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    """Return a model with standard attention as a differential one with the same outputs, as ``antiphase convert`` does.

    ``model`` is a specification or a loaded model, ``options`` are ``ratio`` and ``towers``. With ``out`` it is written
    as a run directory, and loaded from there. See :func:`antiphase.models.convert.converted`.
    """
    if isinstance(model, str):
        model = load_model(model, random_weights=random_weights, seed=seed)
    new = converted(model, to, seed=seed, **options)
    if out is None:
        return new
    chosen = Path(out)
    with run_folder(chosen, "convert"):
        write_model(new, chosen)
    return load_model(str(out))


def answer(options: ConvertOptions, _: str) -> dict[str, Any]:
    """Write the converted model and return where, what it is and from what."""
    given = options.model_dump(exclude={"model", "to"})
    new: Any = convert(options.model, options.to, **given)
    say(f"{options.out}: {options.model} with {options.to} attention, the same outputs; train it with")
    say(f"antiphase train --model {options.out} --data … --out …")
    return {"out": str(options.out), "model": options.model, "to": options.to, "attention": new.card.attention}


