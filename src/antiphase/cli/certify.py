"""``antiphase certify``: its options and examples."""

from pathlib import Path
from typing import Annotated

import typer

from antiphase.cli.app import app
from antiphase.cli.options import (
    MOST_AT_ONCE,
    Classes,
    DataSource,
    Device,
    Limit,
    Out,
    Prompt,
    Quiet,
    RandomWeights,
    Seed,
    Split,
)
from antiphase.commands.certify import run_certify
from antiphase.runs.folders import run_folder


@app.command()
def certify(
    model: Annotated[str, typer.Argument(help="specimen:diffvit-0, a run directory, timm:NAME.")],
    against: Annotated[str | None, typer.Option(help="The twin to compare with.")] = None,
    data: DataSource = None,
    classes: Classes = None,
    split: Split = "test",
    limit: Limit = 500,
    sigma: Annotated[
        float, typer.Option(help="Standard deviation of the noise, in units of the [0, 1] pixel.")
    ] = 0.25,
    samples: Annotated[
        int, typer.Option(help="Noisy copies of each image that bound the radius; the field takes 100,000.")
    ] = 100_000,
    select: Annotated[int, typer.Option(help="Noisy copies that choose the class.")] = 100,
    alpha: Annotated[float, typer.Option(help="Probability that an image's radius is too large.")] = 0.001,
    precision: Annotated[
        str, typer.Option(help="Of the smoothed model: float32, or bf16 (faster; another model).")
    ] = "float32",
    seed: Seed = 0,
    out: Out = Path("antiphase-certify"),
    random_weights: RandomWeights = False,
    prompt: Prompt = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Noisy copies through the model at once; affects no result.", min=1, max=MOST_AT_ONCE
        ),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Certify an L2 radius for each image by randomised smoothing; write rows, summary.json and the curve.

    It says how long it will take before it starts, and goes on where it was when killed. The certificate is one of
    the smoothed model. A model that was not trained with noise certifies little at a large σ: try a small one.

    **Examples**

    antiphase certify specimen:diffvit-0 --against specimen:vit-0 --sigma 0.05 --samples 1000 --limit 100

    antiphase certify runs/diffvit --sigma 0.25 --limit 500

    torchrun --nproc-per-node 4 -m antiphase certify timm:vit_small_patch16_224 --data imagenet --sigma 0.5
    """
    with run_folder(out, "certify"):
        run_certify(
            model, against, data, out, quiet, device, split=split, limit=limit, random_weights=random_weights,
            prompt=prompt, batch_size=batch_size, sigma=sigma, samples=samples, select=select, alpha=alpha, seed=seed,
            precision=precision, classes=classes,
        )  # fmt: skip
