"""``antiphase train``: its options and examples."""

from typing import Annotated

import typer

from antiphase.cli.app import app
from antiphase.cli.options import MOST_AT_ONCE, Out, Quiet, Seed
from antiphase.commands.training import run_training
from antiphase.runs.folders import run_folder


@app.command()
def train(
    model: Annotated[str, typer.Option(help="vit or diffvit.")],
    data: Annotated[str, typer.Option(help="Source of images with a train split.")],
    out: Out,
    epochs: Annotated[int, typer.Option(help="Passes over the data.", min=1)] = 100,
    depth: Annotated[int | None, typer.Option(help="Blocks.", min=1)] = None,
    dim: Annotated[int | None, typer.Option(help="Width of the tokens.", min=1)] = None,
    heads: Annotated[
        int | None, typer.Option(help="Heads of the standard twin (a DiffViT has half).", min=1)
    ] = None,
    patch_size: Annotated[int | None, typer.Option(help="Side of a patch in pixels.", min=1)] = None,
    lambda_init: Annotated[float | None, typer.Option(help="DiffViT: initial λ; 0.8 if not given.")] = None,
    lambda_schedule: Annotated[
        str | None,
        typer.Option(help="DiffViT: constant, or depth (0.8 − 0.6·exp(−0.3·layer)); constant if not given."),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="For image files: resize to this many pixels.", min=1)
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Train on at most so many images.", min=1)] = None,
    batch_size: Annotated[
        int, typer.Option(help="Images a step, over all processes.", min=1, max=MOST_AT_ONCE)
    ] = 128,
    optimizer: Annotated[str, typer.Option(help="adam or adamw.")] = "adam",
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 5e-4,
    weight_decay: Annotated[float, typer.Option(help="Of matrices only.")] = 0.0,
    schedule: Annotated[str, typer.Option(help="constant or cosine.")] = "constant",
    warmup_epochs: Annotated[float, typer.Option(help="Epochs of linear warm-up.")] = 0.0,
    augment: Annotated[str, typer.Option(help="none or flip-crop.")] = "none",
    precision: Annotated[
        str, typer.Option(help="float32, bf16, or auto: bf16 where the hardware has it.")
    ] = "auto",
    adversarial: Annotated[
        str | None,
        typer.Option(
            help="Train on images perturbed by up to this ε, in units of the [0, 1] pixel; 1/255 is fine."
        ),
    ] = None,
    adversarial_variant: Annotated[
        str | None, typer.Option(help="pgd (the default), fast (one step) or free (minibatches replayed).")
    ] = None,
    adversarial_steps: Annotated[int | None, typer.Option(help="Of pgd; 3 where not given.", min=1)] = None,
    adversarial_step_size: Annotated[
        str | None, typer.Option(help="In pixels as ε; pgd: max(ε/4, 2·ε/steps), fast: 1.25·ε, free: ε.")
    ] = None,
    adversarial_warmup: Annotated[
        float | None, typer.Option(help="Epochs over which ε rises from 0; 1 where not given.", min=0)
    ] = None,
    replays: Annotated[
        int | None, typer.Option(help="Of each minibatch, by free; 4 where not given.", min=1)
    ] = None,
    store: Annotated[str, typer.Option(help="Type of the stored weights: float32 or float16.")] = "float32",
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Train a ViT or a DiffViT by the robustness paper's recipe (Adam, 5e-4, batches of 128).

    A killed run goes on with the same command, and ends with the weights of an uninterrupted one.
    Under torchrun, the batch is shared among the processes. With --adversarial, each epoch also tells the
    accuracy under PGD at that ε.

    **Examples**

    antiphase train --model diffvit --data digits --epochs 20 --out runs/diffvit

    antiphase train --model vit --data cifar10 --depth 4 --augment flip-crop --out runs/vit-4

    antiphase train --model diffvit --data cifar10 --adversarial 0.5/255 --out runs/diffvit-robust

    torchrun --nproc-per-node 2 -m antiphase train --model vit --data imagenet --out runs/b16
    """
    fields = {
        "depth": depth, "dim": dim, "num_heads": heads, "patch_size": patch_size, "lambda_init": lambda_init,
        "lambda_schedule": lambda_schedule,
    }  # fmt: skip
    adversary = {
        "eps": adversarial, "variant": adversarial_variant, "steps": adversarial_steps,
        "step_size": adversarial_step_size, "warmup_epochs": adversarial_warmup, "replays": replays,
    }  # fmt: skip
    with run_folder(out, "train"):
        metrics = run_training(
            model, data, out, quiet, image_size=image_size, limit=limit, model_fields=fields, adversarial=adversary,
            epochs=epochs, batch_size=batch_size, optimizer=optimizer, learning_rate=learning_rate,
            weight_decay=weight_decay, schedule=schedule, warmup_epochs=warmup_epochs, augment=augment,
            precision=precision, store=store, seed=seed,
        )  # fmt: skip
    last = metrics[-1]
    robust = f", {last['robust_accuracy']:.4f} under PGD," if adversarial else ""
    print(f"accuracy {last['accuracy']:.4f}{robust} after {last['epoch']} epochs; {out}")
