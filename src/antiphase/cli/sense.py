"""``antiphase sense``: its options and examples."""

from pathlib import Path
from typing import Annotated

import typer

from antiphase.cli.app import app
from antiphase.cli.options import (
    Against,
    BatchSize,
    DataSource,
    Device,
    Limit,
    Models,
    Out,
    Prompt,
    Quiet,
    RandomWeights,
    Seed,
    SkipBad,
    Split,
    refuse_unused,
)
from antiphase.commands.sense import run_sense
from antiphase.runs.folders import run_folder

# what each option is of
_USERS = {
    "probes": ["alignment"], "eps": ["depth"], "steps": ["lipschitz", "depth"], "radius": ["lipschitz"],
    "samples": ["lipschitz"], "points": ["lipschitz"], "lipschitz_limit": ["lipschitz"],
}  # fmt: skip


@app.command()
def sense(
    context: typer.Context,
    model: Models,
    against: Against = None,
    data: DataSource = None,
    split: Split = "test",
    limit: Limit = 64,
    parts: Annotated[
        str,
        typer.Option(
            help="Which of alignment, depth and lipschitz (some hundred passes a layer), separated by commas."
        ),
    ] = "alignment,depth",
    probes: Annotated[int, typer.Option(help="Random directions at the pixels, at least 2.")] = 32,
    radius: Annotated[str, typer.Option(help="L∞ ball of the local Lipschitz constants.")] = "8/255",
    samples: Annotated[int, typer.Option(help="Points of the paper's uniform sampling.")] = 100,
    steps: Annotated[int, typer.Option(help="Of gradient ascent; power iteration takes twice as many.")] = 10,
    points: Annotated[int, typer.Option(help="Where the steepest slope in the ball is looked for.")] = 2,
    lipschitz_limit: Annotated[
        int, typer.Option(help="Images that Lipschitz constants are estimated at.", min=1)
    ] = 16,
    eps: Annotated[
        str, typer.Option(help="L∞ budgets of the perturbations followed through the depth.")
    ] = "1/255,4/255",
    seed: Seed = 0,
    out: Out = Path("antiphase-sense"),
    random_weights: RandomWeights = False,
    skip_bad: SkipBad = False,
    prompt: Prompt = None,
    batch_size: BatchSize = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure how sensitive a model's attention is, layer by layer: alignment, Lipschitz constants, depth.

    Any model with attention: ours, timm's, with the maps of each layer checked against the module's own output.

    **Examples**

    antiphase sense specimen:diffvit-0 --against specimen:vit-0 --parts alignment,depth,lipschitz

    antiphase sense timm:vit_dwee_patch16_reg1_gap_256 --random-weights --data random --limit 2 --out dwee

    antiphase sense runs/diffvit-4 --against runs/vit-4 --parts alignment --probes 32 --limit 256
    """
    chosen = [part.strip() for part in parts.split(",")]
    refuse_unused(context, chosen, _USERS)
    with run_folder(out, "sense"):
        run_sense(
            model.split(","), against.split(",") if against else [], data, out, quiet, device,
            parts=chosen, radius=radius, travel=eps, split=split, limit=limit,
            random_weights=random_weights, skip_bad=skip_bad, prompt=prompt, batch_size=batch_size,
            probes=probes, samples=samples, steps=steps, points=points, lipschitz_limit=lipschitz_limit, seed=seed,
        )  # fmt: skip
