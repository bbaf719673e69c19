"""``antiphase train-clip``: what it prints, and its examples."""

from antiphase.cli.app import app
from antiphase.cli.command import Answer, command
from antiphase.cli.training import trained
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
    return trained(options, "train-clip")
