"""The command line: one line for each mistake, exit code 2; a traceback is a defect of ours."""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer.exceptions import Exit, TyperException

from antiphase.commands import given, run_audit, run_training
from antiphase.errors import UserError

app = typer.Typer(
    name="antiphase",
    help="Measure how fragile differential attention is, and help to build models that are not.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

_EPS = "0.5/255,1/255,2/255,4/255,8/255"
Eps = Annotated[
    str, typer.Option(help="Budgets in units of the [0, 1] pixel, separated by commas; fractions are fine.")
]
Out = Annotated[Path, typer.Option(help="Directory to write; the same command goes on where it was.")]
Seed = Annotated[int, typer.Option(help="Of every random draw.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]
Norm = Annotated[str, typer.Option(help="linf or l2.")]
AttackName = Annotated[str, typer.Option(help="An attack, as of antiphase attack --attack.")]
Steps = Annotated[int | None, typer.Option(help="Steps of the attack; PGD takes 20 of ε/4.", min=1)]
Restarts = Annotated[int | None, typer.Option(help="Tries of a sample that stands.", min=1)]
Independent = Annotated[
    bool,
    typer.Option("--independent", help="Attack at each ε afresh; else the fallen stay fallen at larger ε."),
]
Control = Annotated[
    bool, typer.Option("--control", help="Also add random noise of the same ε, to compare the attack with.")
]
SearchPrecision = Annotated[
    str, typer.Option(help="Of the search: float32, or bf16 (faster); verdicts are float32.")
]
DataSource = Annotated[
    str | None, typer.Option(help="Source of images; the model's own test images where not given.")
]
RandomWeights = Annotated[
    bool, typer.Option("--random-weights", help="Build timm: models without a download.")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out images that cannot be read, and count them.")
]
BatchSize = Annotated[
    int | None, typer.Option(help="Images through the model at once; affects no result.", min=1)
]


def main() -> None:
    """Run the command line."""
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        _complain(str(error))
    except TyperException as error:
        _complain(error.format_message())
    except Exit as error:
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("antiphase: interrupted; the same command goes on where it was", file=sys.stderr)
        sys.exit(130)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> None:
    print("antiphase: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"antiphase {version('antiphase')}")
        raise Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def quickstart(
    out: Out = Path("antiphase-quickstart"),
    eps: Eps = "1/255,2/255,4/255,8/255",
    limit: Annotated[int, typer.Option(help="At most so many of the 1,000 images.", min=1)] = 250,
    train: Annotated[
        bool, typer.Option("--train", help="Train a fresh pair first (minutes; needs Fashion-MNIST).")
    ] = False,
    epochs: Annotated[int, typer.Option(help="With --train: passes over the 60,000 images.", min=1)] = 3,
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
    if train:
        models, against = [str(out / "diffvit")], [str(out / "vit")]
        for kind, path in (("diffvit", models[0]), ("vit", against[0])):
            Console(stderr=True).print(f"training {kind} for {epochs} epochs into {path}", highlight=False)
            run_training(kind, "fashion-mnist", Path(path), quiet, epochs=epochs, seed=seed)
    run_audit(models, against, "specimen-fashion-mnist", out, quiet, device, eps=eps, limit=limit, seed=seed)


@app.command()
def audit(
    model: Annotated[
        str,
        typer.Argument(
            help="Model, or several separated by commas: specimen:diffvit-0, a run directory, timm:NAME."
        ),
    ],
    against: Annotated[
        str | None, typer.Option(help="The twin to compare with; several, one for each model.")
    ] = None,
    data: DataSource = None,
    split: Annotated[str, typer.Option(help="Which part of the source.")] = "test",
    limit: Annotated[int | None, typer.Option(help="At most so many images.", min=1)] = 1000,
    eps: Eps = _EPS,
    norm: Norm = "linf",
    attack: AttackName = "pgd",
    steps: Steps = None,
    restarts: Restarts = None,
    independent: Independent = False,
    control: Control = False,
    precision: SearchPrecision = "float32",
    seed: Seed = 0,
    out: Out = Path("antiphase-audit"),
    random_weights: RandomWeights = False,
    skip_bad: SkipBad = False,
    batch_size: BatchSize = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Attack a model, and its twin on the same images; write rows, summary.json and report.html.

    **Examples**

    antiphase audit specimen:diffvit-0 --against specimen:vit-0

    antiphase audit runs/diffvit --against runs/vit --eps 1/255,4/255 --limit 500

    antiphase audit timm:vit_tiny_patch16_224 --random-weights --data random --limit 8

    antiphase audit timm:vit_small_patch16_224 --data folder:PHOTOS --skip-bad
    """
    run_audit(
        model.split(","), against.split(",") if against else [], data, out, quiet, device,
        split=split, limit=limit, eps=eps, norm=norm, attack=attack,
        settings=given(steps=steps, restarts=restarts), nested=not independent, control=control,
        precision=precision, seed=seed, random_weights=random_weights, skip_bad=skip_bad, batch_size=batch_size,
    )  # fmt: skip


@app.command()
def attack(
    model: Annotated[str, typer.Argument(help="specimen:diffvit-0, a run directory, timm:NAME.")],
    data: DataSource = None,
    split: Annotated[str, typer.Option(help="Which part of the source.")] = "test",
    limit: Annotated[int | None, typer.Option(help="At most so many images.", min=1)] = 1000,
    name: Annotated[
        str,
        typer.Option(
            "--attack",
            help="pgd, patch, fgsm, apgd-ce, apgd-dlr, apgd-t, fab, fab-t, square, carlini-wagner, noise, autoattack.",
        ),
    ] = "autoattack",
    eps: Eps = "8/255",
    norm: Norm = "linf",
    version: Annotated[str | None, typer.Option(help="AutoAttack: standard, 2020, plus or rand.")] = None,
    steps: Steps = None,
    restarts: Restarts = None,
    queries: Annotated[int | None, typer.Option(help="Square: forward passes a sample.", min=1)] = None,
    width: Annotated[int | None, typer.Option(help="Patch: side of the square in pixels.", min=1)] = None,
    objective: Annotated[
        str | None, typer.Option(help="PGD, APGD: cross_entropy, margin, dlr or cosine.")
    ] = None,
    independent: Independent = False,
    control: Control = False,
    precision: SearchPrecision = "float32",
    seed: Seed = 0,
    out: Out = Path("antiphase-attack"),
    random_weights: RandomWeights = False,
    skip_bad: SkipBad = False,
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
    run_audit(
        [model], [], data, out, quiet, device, split=split, limit=limit, eps=eps, norm=norm, attack=name,
        settings=settings, nested=not independent, control=control, precision=precision, seed=seed,
        random_weights=random_weights, skip_bad=skip_bad, batch_size=batch_size,
    )  # fmt: skip


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
    lambda_init: Annotated[float, typer.Option(help="DiffViT: initial λ.")] = 0.8,
    lambda_schedule: Annotated[
        str, typer.Option(help="DiffViT: constant, or depth (0.8 − 0.6·exp(−0.3·layer)).")
    ] = "constant",
    image_size: Annotated[
        int | None, typer.Option(help="For image files: resize to this many pixels.", min=1)
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Train on at most so many images.", min=1)] = None,
    batch_size: Annotated[int, typer.Option(help="Images a step, over all processes.", min=1)] = 128,
    optimizer: Annotated[str, typer.Option(help="adam or adamw.")] = "adam",
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 5e-4,
    weight_decay: Annotated[float, typer.Option(help="Of matrices only.")] = 0.0,
    schedule: Annotated[str, typer.Option(help="constant or cosine.")] = "constant",
    warmup_epochs: Annotated[float, typer.Option(help="Epochs of linear warm-up.")] = 0.0,
    augment: Annotated[str, typer.Option(help="none or flip-crop.")] = "none",
    precision: Annotated[
        str, typer.Option(help="float32, bf16, or auto: bf16 where the hardware has it.")
    ] = "auto",
    store: Annotated[str, typer.Option(help="Type of the stored weights: float32 or float16.")] = "float32",
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Train a ViT or a DiffViT by the robustness paper's recipe (Adam, 5e-4, batches of 128).

    A killed run goes on with the same command, and ends with the weights of an uninterrupted one.
    Under torchrun, the batch is shared among the processes.

    **Examples**

    antiphase train --model diffvit --data digits --epochs 20 --out runs/diffvit

    antiphase train --model vit --data cifar10 --depth 4 --augment flip-crop --out runs/vit-4

    torchrun --nproc-per-node 2 -m antiphase train --model vit --data imagenet --out runs/b16
    """
    fields = {
        "depth": depth, "dim": dim, "num_heads": heads, "patch_size": patch_size, "lambda_init": lambda_init,
        "lambda_schedule": lambda_schedule,
    }  # fmt: skip
    metrics = run_training(
        model, data, out, quiet, image_size=image_size, limit=limit, model_fields=fields, epochs=epochs,
        batch_size=batch_size, optimizer=optimizer, learning_rate=learning_rate, weight_decay=weight_decay,
        schedule=schedule, warmup_epochs=warmup_epochs, augment=augment, precision=precision, store=store, seed=seed,
    )  # fmt: skip
    last = metrics[-1]
    print(f"accuracy {last['accuracy']:.4f} after {last['epoch']} epochs; {out}")
