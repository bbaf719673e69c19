"""What ``antiphase train`` does once its options are read. Imports are local, so that --help is quick."""

from pathlib import Path
from typing import Any

from antiphase.commands.parse import given, parse_eps
from antiphase.errors import UserError
from antiphase.runs.loading import find_device


def run_training(
    kind: str, data: str, out: Path, quiet: bool, *, image_size: int | None = None, limit: int | None = None,
    model_fields: dict[str, Any] | None = None, adversarial: dict[str, Any] | None = None, precision: str = "auto",
    **fields: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Load the data and train; return the metrics of each epoch."""
    from antiphase.data import load_data
    from antiphase.models.towers import attention_of, attention_spec
    from antiphase.training import fastest_precision, make_recipe, train_classifier

    spec = attention_spec(attention_of(kind))
    chosen = given(**(model_fields or {}))
    if not spec.differential and (odd := sorted({"lambda_init", "lambda_schedule"} & set(chosen))):
        raise UserError(f"{odd[0]}: a {kind} has no λ; leave it out or train a diffvit")
    adversary = _read_adversary(**(adversarial or {}))
    images = load_data(data, split="train", image_size=image_size, limit=limit, progress=not quiet)
    held_out = load_data(data, split="test", image_size=image_size, progress=not quiet)
    if precision == "auto":
        precision = fastest_precision(find_device("auto"))
    recipe = make_recipe(
        kind, images, chosen, data=data, precision=precision, adversarial=adversary or None, **fields
    )
    return train_classifier(recipe, images, held_out, out, progress=not quiet)


def _read_adversary(**options: Any) -> dict[str, Any]:
    """Return the fields of an adversary from options as they were typed, None where they were not.

    Raises:
        UserError: for options that need an ε and have none, or an ε or step size that is not one number.
    """
    fields = given(**options)
    if fields and "eps" not in fields:
        raise UserError(
            f"adversarial {', '.join(fields)} without an ε: give --adversarial too, such as 1/255"
        )
    for name in ("eps", "step_size"):
        if name in fields:
            numbers = parse_eps(fields[name])
            if len(numbers) != 1:
                raise UserError(f"adversarial {name} {fields[name]!r}: expected one number, such as 1/255")
            fields[name] = numbers[0]
    return fields
