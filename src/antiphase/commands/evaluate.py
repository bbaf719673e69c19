"""What ``antiphase evaluate`` does once its options are read. Imports are local, so that --help is quick."""

import shlex
import sys
from pathlib import Path

from rich.console import Console

from antiphase.commands.loading import find_device
from antiphase.errors import UserError


def run_evaluation(
    models: list[str], data: list[str], out: Path, quiet: bool, device: str, *, split: str, limit: int | None,
    prompts: list[str], captions: str, batch_size: int, random_weights: bool,
) -> None:  # fmt: skip
    """Load models and pairs, measure, write rows and summary, and print the table."""
    if captions not in ("all", "first"):
        raise UserError(f"captions {captions!r}: expected all or first")
    from antiphase.data.pair_sources import load_pairs
    from antiphase.data.pairs import PairSet
    from antiphase.models.zeroshot import is_dual_encoder
    from antiphase.models.zoo import load_model
    from antiphase.report.encoders import encoder_table
    from antiphase.studies.encoders import evaluate_encoders

    place = find_device(device)
    loaded = [
        load_model(spec, random_weights=random_weights and spec.startswith("open_clip:")).to(place)
        for spec in map(str.strip, models)
    ]
    for spec, model in zip(models, loaded, strict=True):
        if not is_dual_encoder(model):
            raise UserError(
                f"{spec}: encodes no text; expected a CLIP, such as a run of antiphase train-clip"
            )
    sets = []
    for name in map(str.strip, data):
        pairs = load_pairs(name, split=split, limit=limit, progress=not quiet)
        if not isinstance(pairs, PairSet):
            raise UserError(f"{name}: shards are a stream to train on; expected pairs in random access")
        sets.append(pairs)
    summary = evaluate_encoders(
        loaded, sets, out, templates=prompts or None, captions=captions, batch_size=batch_size,
        command=shlex.join(["antiphase", *sys.argv[1:]]), progress=not quiet,
    )  # fmt: skip
    Console().print(encoder_table(summary))
    print(f"rows and summary: {out}")
