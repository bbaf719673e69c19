"""``antiphase quickstart``, ``audit`` and ``attack``: their options and examples."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from antiphase.cli.app import app
from antiphase.cli.options import (
    EPS,
    Against,
    AttackChoice,
    AttackName,
    BatchSize,
    Classes,
    Compiled,
    Control,
    DataSource,
    Device,
    Eps,
    Independent,
    Limit,
    Models,
    Nested,
    Nesting,
    Norm,
    Objective,
    Out,
    PatchWidth,
    Prompt,
    Quiet,
    RandomWeights,
    Restarts,
    SearchPrecision,
    Seed,
    SkipBad,
    Split,
    Steps,
)  # fmt: skip
from antiphase.commands.audit import run_audit
from antiphase.commands.parse import given
from antiphase.commands.training import run_training
from antiphase.errors import UserError
from antiphase.runs.folders import run_folder


@app.command()
def quickstart(
    out: Out = Path("antiphase-quickstart"),
    eps: Eps = "1/255,2/255,4/255,8/255",
    limit: Annotated[int, typer.Option(help="At most so many of the 1,000 images.", min=1)] = 250,
    train: Annotated[
        bool, typer.Option("--train", help="Train a fresh pair first (minutes; needs Fashion-MNIST).")
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(help="With --train: passes over the 60,000 images, 3 if not given.", min=1)
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Audit the small models that come with the package on images of Fashion-MNIST that come with it too.

    No download, no training: three ViTs and their differential twins under PGD at four budgets.

    **Examples**

    antiphase quickstart

    antiphase quickstart --eps 1/255,2/255 --limit 1000 --out my-run

    antiphase quickstart --train
    """
    models = [f"specimen:diffvit-{i}" for i in range(3)]
    against = [f"specimen:vit-{i}" for i in range(3)]
    if epochs is not None and not train:
        raise UserError(f"epochs {epochs}: is of --train; add --train to train a fresh pair")
    with run_folder(out, "quickstart"):
        if train:
            models, against = [str(out / "diffvit")], [str(out / "vit")]
            for kind, path in (("diffvit", models[0]), ("vit", against[0])):
                Console(stderr=True).print(
                    f"training {kind} for {epochs or 3} epochs into {path}", highlight=False
                )
                run_training(kind, "fashion-mnist", Path(path), quiet, epochs=epochs or 3, seed=seed)
        run_audit(
            models, against, "specimen-fashion-mnist", out, quiet, device, eps=eps, limit=limit, seed=seed,
            sense_limit=32,
        )  # fmt: skip


@app.command()
def audit(
    model: Models,
    against: Against = None,
    data: DataSource = None,
    classes: Classes = None,
    split: Split = "test",
    limit: Limit = 1000,
    eps: Eps = EPS,
    norm: Norm = "linf",
    attack: AttackName = AttackChoice["pgd"],
    steps: Steps = None,
    restarts: Restarts = None,
    objective: Objective = None,
    width: PatchWidth = None,
    nested: Nesting = Nested.UP,
    independent: Independent = False,
    control: Control = False,
    sense_limit: Annotated[
        int, typer.Option(help="Images on which to measure how the maps' gradients lie; 0: none.", min=0)
    ] = 32,
    precision: SearchPrecision = "float32",
    seed: Seed = 0,
    out: Out = Path("antiphase-audit"),
    random_weights: RandomWeights = False,
    skip_bad: SkipBad = False,
    prompt: Prompt = None,
    batch_size: BatchSize = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Attack a model, and its twin on the same images; write rows, summary.json and report.html.

    **Examples**

    antiphase audit specimen:diffvit-0 --against specimen:vit-0

    antiphase audit runs/diffvit --against runs/vit --eps 1/255,4/255 --limit 500

    antiphase audit runs/diffclip --against runs/clip --data openmoji --objective cosine

    antiphase audit timm:vit_tiny_patch16_224 --random-weights --data random --limit 8

    antiphase audit timm:vit_small_patch16_224 --data folder:PHOTOS --skip-bad
    """
    with run_folder(out, "audit"):
        run_audit(
            model.split(","), against.split(",") if against else [], data, out, quiet, device,
            split=split, limit=limit, eps=eps, norm=norm, attack=attack.value,
            settings=given(steps=steps, restarts=restarts, objective=objective, width=width),
            nested="off" if independent else nested.value, control=control,
            sense_limit=sense_limit, precision=precision, seed=seed, random_weights=random_weights,
            skip_bad=skip_bad, prompt=prompt, batch_size=batch_size,
            classes=classes,
        )  # fmt: skip


@app.command()
def attack(
    model: Annotated[str, typer.Argument(help="specimen:diffvit-0, a run directory, timm:NAME.")],
    data: DataSource = None,
    classes: Classes = None,
    split: Split = "test",
    limit: Limit = 1000,
    name: AttackName = AttackChoice["autoattack"],
    eps: Eps = "8/255",
    norm: Norm = "linf",
    version: Annotated[str | None, typer.Option(help="AutoAttack: standard, 2020, plus or rand.")] = None,
    steps: Steps = None,
    restarts: Restarts = None,
    queries: Annotated[int | None, typer.Option(help="Square: forward passes a sample.", min=1)] = None,
    width: PatchWidth = None,
    objective: Objective = None,
    nested: Nesting = Nested.UP,
    independent: Independent = False,
    control: Control = False,
    precision: SearchPrecision = "float32",
    compile: Compiled = False,
    seed: Seed = 0,
    out: Out = Path("antiphase-attack"),
    random_weights: RandomWeights = False,
    skip_bad: SkipBad = False,
    prompt: Prompt = None,
    batch_size: BatchSize = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Attack one model with any attack or ensemble; write rows, summary.json and report.html.

    A killed attack goes on with the same command. Under torchrun the processes share the images.

    **Examples**

    antiphase attack specimen:diffvit-0 --attack autoattack --eps 1/255 --limit 100

    antiphase attack specimen:vit-0 --attack patch --width 6 --eps 1

    antiphase attack runs/vit --attack carlini-wagner --norm l2 --eps 0.5,1

    torchrun --nproc-per-node 4 -m antiphase attack timm:vit_small_patch16_224 --data imagenet --eps 1/255
    """
    settings = given(
        version=version, steps=steps, restarts=restarts, queries=queries, width=width, objective=objective
    )
    with run_folder(out, "attack"):
        run_audit(
            [model], [], data, out, quiet, device, split=split, limit=limit, eps=eps, norm=norm, attack=name.value,
            settings=settings, nested="off" if independent else nested.value, control=control,
            precision=precision, compile=compile, seed=seed, random_weights=random_weights,
            skip_bad=skip_bad, prompt=prompt, batch_size=batch_size, classes=classes,
        )  # fmt: skip
