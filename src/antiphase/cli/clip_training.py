"""``antiphase train-clip``: its options and examples."""

import os
from typing import Annotated

import typer

from antiphase.cli.app import app
from antiphase.cli.options import MOST_AT_ONCE, Out, Quiet, Seed
from antiphase.commands.clip_training import run_clip_training
from antiphase.commands.parse import given
from antiphase.runs.folders import run_folder


@app.command()
def train_clip(
    model: Annotated[
        str,
        typer.Option(
            help="clip, diffclip, diffclip-depth (DiffCLIP*), diffclip-vision (DiffCLIP†) or diffclip-text."
        ),
    ],
    data: Annotated[
        str,
        typer.Option(help="Pairs: openmoji, shards:PATTERN, coco, karpathy:JSON or csv:PATH."),
    ],
    out: Out,
    preset: Annotated[
        str,
        typer.Option(help="diffclip: the papers' recipe, ViT-B/16 at 224; openmoji: a laptop's, at 64."),
    ] = "diffclip",
    held_out: Annotated[
        str | None,
        typer.Option(
            help="Sources whose test split is measured at each epoch, separated by commas, or none; the data's own "
            "where not given."
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Samples in an epoch, for shards that do not tell.", min=1)
    ] = None,
    lanes: Annotated[
        int | None,
        typer.Option(
            help="Streams that the shards are dealt to, a multiple of the number of processes; 8, or as many as "
            "the shards allow, where not given.",
            min=1,
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Train on at most so many pairs.", min=2)] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.", min=1)] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Pairs a step, over all processes.", min=2, max=MOST_AT_ONCE)
    ] = None,
    part: Annotated[
        int | None,
        typer.Option(
            help="Pairs of a process that go through the towers at a time (GradCache): less memory, same gradient.",
            min=1,
        ),
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    warmup_epochs: Annotated[float | None, typer.Option(help="Epochs of linear warm-up.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of matrices only.")] = None,
    loss: Annotated[
        str,
        typer.Option(
            help="clip, siglip, or slip_exact: as SLIP's code on several GPUs, keys without gradient."
        ),
    ] = "clip",
    init: Annotated[
        str, typer.Option(help="matched: both twins start alike; released: as the released pair did.")
    ] = "matched",
    lambda_init: Annotated[
        float | None, typer.Option(help="DiffCLIP: λ_init of the constant schedule; 0.8 if not given.")
    ] = None,
    patch_dropout: Annotated[float, typer.Option(help="Share of patches left out in training.")] = 0.0,
    precision: Annotated[
        str, typer.Option(help="float32, bf16, or auto: bf16 where the hardware has it.")
    ] = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="Run the towers under torch.compile.")] = False,
    checkpointing: Annotated[
        bool,
        typer.Option(
            "--checkpointing", help="Compute each block again in the backward pass: slower, less memory."
        ),
    ] = False,
    track: Annotated[
        str | None,
        typer.Option(
            help="Experiment trackers that accelerate knows, separated by commas: tensorboard, wandb, …"
        ),
    ] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Train a CLIP or a DiffCLIP on images with captions, by DiffCLIP's recipe.

    A killed run goes on with the same command and ends with the weights of an uninterrupted one. Under
    torchrun the batch is shared among the processes, and the gradient is that of the whole batch.

    **Examples**

    antiphase train-clip --model diffclip --data openmoji --preset openmoji --out runs/diffclip

    antiphase train-clip --model clip --data "shards:cc3m/{00000..00331}.tar" --out runs/clip

    torchrun --nproc-per-node 8 -m antiphase train-clip --model diffclip --part 256 --compile
    --data "shards:s3://bucket/cc12m/{00000..01242}.tar" --samples 10000000 --out runs/cc12m
    """
    fields = given(
        epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, warmup_epochs=warmup_epochs,
        weight_decay=weight_decay,
    )  # fmt: skip
    model_fields = {"init": init} | given(lambda_init=lambda_init)
    with run_folder(out, "train-clip"):
        metrics = run_clip_training(
            model, data, held_out, out, quiet, preset=preset, samples=samples, lanes=lanes, limit=limit,
            model_fields=model_fields, precision=precision, part=part, compiled=compile, checkpointing=checkpointing,
            trackers=track.split(",") if track else [], loss=loss, patch_dropout=patch_dropout, seed=seed, **fields,
        )  # fmt: skip
    if os.environ.get("RANK", "0") == "0":
        print(f"loss {metrics[-1]['loss']:.4f} after {metrics[-1]['epoch']} epochs; {out}")
