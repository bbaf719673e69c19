"""What ``antiphase train-clip`` does once its options are read. Imports are local, so that --help is quick."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphase.errors import UserError
from antiphase.runs.loading import check_compiler, find_device

if TYPE_CHECKING:
    from antiphase.data.pairs import PairSet
    from antiphase.models import CLIP


def run_clip_training(
    variant: str, data: str, held_out: str | None, out: Path, quiet: bool, *, preset: str, samples: int | None,
    lanes: int | None, limit: int | None, model_fields: dict[str, Any], precision: str, part: int | None,
    compiled: bool, checkpointing: bool, trackers: list[str], **fields: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Load the pairs and train; return the metrics of each epoch."""
    if variant == "clip" and "lambda_init" in model_fields:
        raise UserError("lambda_init: a clip has no λ; leave out --lambda-init or train a diffclip")
    from antiphase.data.pair_sources import load_pairs
    from antiphase.data.pairs import PairSet
    from antiphase.training.clip_recipe import make_clip_recipe
    from antiphase.training.contrastive import train_clip
    from antiphase.training.recipe import fastest_precision

    if compiled:
        check_compiler(find_device("auto"))
    pairs = load_pairs(data, split="train", limit=limit, samples=samples, lanes=lanes, progress=not quiet)
    tested: list[PairSet] = []
    own = data if isinstance(pairs, PairSet) and held_out is None else None
    for name in (held_out or own or "").split(","):
        if name and name != "none":
            one = load_pairs(name, split="test", progress=not quiet)
            if not isinstance(one, PairSet):
                raise UserError(f"{name}: shards are a stream to train on; hold out another source")
            if name == data and one.fingerprint() == load_pairs(name, progress=False).fingerprint():
                print(f"{name} has no test split of its own: nothing is held out", file=sys.stderr)
                continue
            tested.append(one)
    if precision == "auto":
        precision = fastest_precision(find_device("auto"))
    recipe = make_clip_recipe(
        variant, preset, data, pairs.fingerprint(), model_fields, precision=precision, **fields
    )

    def evaluate(model: "CLIP") -> dict[str, float]:
        return evaluate_sets(model, tested)

    return train_clip(
        recipe, pairs, out, evaluate=evaluate, part=part, compiled=compiled, checkpointing=checkpointing,
        trackers=trackers, progress=not quiet,
    )  # fmt: skip


def evaluate_sets(model: "CLIP", tested: "list[PairSet]") -> dict[str, float]:
    """Return retrieval and zero-shot metrics of every held-out set, under its name where there are several."""
    from antiphase.evaluation.encoders import encoder_numbers

    found: dict[str, float] = {}
    for pairs in tested:
        numbers = encoder_numbers(model, pairs, prompts=pairs.prompts)
        found |= {
            f"{pairs.name} {name}" if len(tested) > 1 else name: value for name, value in numbers.items()
        }
    return found
