"""What the commands do once their options are read. Imports are local, so that --help is quick."""

import json
import os
import shlex
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from antiphase.errors import UserError


def parse_eps(text: str) -> tuple[float, ...]:
    """Return the numbers of a comma-separated list; ``1/255`` is a number.

    Raises:
        UserError: naming the part that is not one.

    >>> parse_eps("0.5/255, 0.25")
    (0.00196078431372549, 0.25)
    """

    def number(part: str) -> float:
        try:
            above, _, below = part.partition("/")
            return float(Fraction(above.strip()) / Fraction(below.strip() or 1))
        except (ValueError, ZeroDivisionError):
            raise UserError(f"eps {part.strip()!r}: expected a number or a fraction such as 1/255") from None

    return tuple(number(part) for part in text.split(","))


def run_audit(
    models: list[str], against: list[str], data: str | None, out: Path, quiet: bool, device: str, *, eps: str,
    split: str = "test", limit: int | None = None, random_weights: bool = False, skip_bad: bool = False,
    control: bool = False, **plan: Any,
) -> None:  # fmt: skip
    """Load models and data, audit them, write the report and print the table."""
    from antiphase.data import load_data
    from antiphase.models.zoo import card_of, load_model
    from antiphase.report import console_table, write_report
    from antiphase.studies.audit import audit
    from antiphase.studies.measure import Plan
    from antiphase.studies.shards import shard

    began = time.monotonic()
    chosen = Plan(parse_eps(eps), **plan)
    place = _device(device)
    if against and len(against) != len(models):
        raise UserError(f"{len(models)} models against {len(against)}: expected a twin for each")
    loaded = [
        load_model(spec.strip(), random_weights=random_weights and spec.strip().startswith("timm:"))
        for spec in [*models, *against]
    ]
    card = card_of(loaded[0])
    own = {"specimen": "specimen-fashion-mnist"}.get(card.spec.partition(":")[0]) or (card.recipe or {}).get(
        "data"
    )
    if (source := data or own) is None:
        raise UserError(f"{card.spec} says nothing of its data: give --data, for example --data folder:PATH")
    channels, size, _ = card.image_shape
    images = load_data(
        source, split=split, image_size=size, channels=channels, limit=limit, seed=0, skip_bad=skip_bad,
        num_classes=card.num_classes if source == "random" else None, progress=not quiet,
    )  # fmt: skip
    loaded = [model.to(place) for model in loaded]
    summary = audit(
        loaded[: len(models)], loaded[len(models) :], images, chosen, out, control=control,
        command=shlex.join(["antiphase", *sys.argv[1:]]), progress=not quiet,
    )  # fmt: skip
    if not shard().first:
        return
    report = write_report(out)
    Console().print(console_table(summary))
    for at in summary.get("norms", []):
        found = "is not reached" if at["eps"] is None else f"at ε = {at['eps']:.4g} (from {at['low']:.4g})"
        print(f"{at['model']}: ASR of {at['level'] * 100:.0f} % {found}")
    for warning in json.loads((out / "run.json").read_text(encoding="utf-8"))["warnings"]:
        print(f"warning: {warning}")
    print(f"report: {report}   ({time.monotonic() - began:.0f} s)")


def given(**settings: Any) -> dict[str, Any]:
    """Return the settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}


def run_training(
    kind: str, data: str, out: Path, quiet: bool, *, image_size: int | None = None, limit: int | None = None,
    model_fields: dict[str, Any] | None = None, precision: str = "auto", **fields: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Load the data and train; return the metrics of each epoch."""
    from antiphase.data import load_data
    from antiphase.training import fastest_precision, make_recipe, train_classifier

    if kind not in ("vit", "diffvit"):
        raise UserError(f"model {kind!r}: expected vit or diffvit")
    images = load_data(data, split="train", image_size=image_size, limit=limit, progress=not quiet)
    held_out = load_data(data, split="test", image_size=image_size, progress=not quiet)
    if precision == "auto":
        precision = fastest_precision(_device("auto"))
    chosen = given(**(model_fields or {}))
    recipe = make_recipe(kind, images, chosen, data=data, precision=precision, **fields)
    return train_classifier(recipe, images, held_out, out, progress=not quiet)


def _device(name: str) -> torch.device:
    if name == "auto":
        own = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"  # each of torchrun's processes has one
        return torch.device(own if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r} cannot be used ({reason}); try --device cpu") from None
    return device
