"""``antiphase train-clip``: what it prints, and its examples."""

import os

from antiphase.cli.app import app, typed_command
from antiphase.cli.command import Answer, command
from antiphase.runs.folders import run_folder
from antiphase.runs.options.clip_training import TrainClipOptions


@command(app, TrainClipOptions)
def train_clip(options: TrainClipOptions) -> Answer:
    """Train a CLIP or a DiffCLIP on images with captions, by DiffCLIP's recipe.

    The same command resumes a killed run, which ends with the weights of an uninterrupted one. Under
    torchrun the processes share the batch, and the gradient is that of the whole batch.

    **Examples**

    antiphase train-clip --model diffclip --data openmoji --preset openmoji --out runs/diffclip

    antiphase train-clip --model clip --data "shards:cc3m/{00000..00331}.tar" --out runs/clip

    torchrun --nproc-per-node 8 -m antiphase train-clip --model diffclip --part 256 --compile
    --data "shards:s3://bucket/cc12m/{00000..01242}.tar" --samples 10000000 --out runs/cc12m
    """
    with run_folder(options.out, "train-clip"):
        from antiphase.runs.train_clip import run

        last = run(options, typed_command())[-1]
    if os.environ.get("RANK", "0") != "0":
        return None
    print(f"loss {last['loss']:.4f} after {last['epoch']} epochs; {options.out}")
    return last | {"out": str(options.out)}
