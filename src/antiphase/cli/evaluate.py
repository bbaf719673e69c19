"""``antiphase evaluate``: its options and examples."""

from pathlib import Path
from typing import Annotated

import typer

from antiphase.cli.app import app
from antiphase.cli.options import (
    MOST_AT_ONCE,
    Against,
    Device,
    Limit,
    Out,
    Quiet,
    RandomWeights,
    SkipBad,
    Split,
    directory,
)
from antiphase.commands.evaluate import make_protocol, run_evaluation
from antiphase.registry import TASKS
from antiphase.runs.folders import run_folder


@app.command()
def evaluate(
    models: Annotated[
        str,
        typer.Argument(
            help="Model, or several separated by commas: a run directory, open_clip:NAME/TAG, "
            "diffclip:PATH#lambda_init=0.8, specimen:diffvit-0."
        ),
    ],
    against: Against = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help=f"Some of {', '.join(TASKS)}, separated by commas; probe:DATA is for that set "
            "alone. All that models and data allow where not given."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data sets, separated by commas: openmoji (where not given), noto-emoji, flickr8k, flickr30k, "
            "coco-karpathy, csv:PATH, wds:PATH, imagenet, imagenet-v2, -a, -r, -sketch, the nine probe sets, "
            "folder:PATH, mmvp, mmvp:PATH, emoji-mmvp; 'paper' for the DiffCLIP paper's of each task."
        ),
    ] = None,
    split: Split = "test",
    limit: Limit = None,
    train_limit: Annotated[
        int | None,
        typer.Option(help="At most so many images to train the probe on and to support few-shot.", min=1),
    ] = None,
    templates: Annotated[
        str | None,
        typer.Option(
            help="Prompt ensembles of zero-shot, separated by commas: 80, 7, 1, own (the data's own texts), or a file "
            "with a template a line. Where not given: own where the data have them, else 80 and 7."
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="A template of one's own, {} for the class's name; several are averaged."),
    ] = None,
    captions: Annotated[
        str,
        typer.Option(help="Which captions of an image retrieve it: all, as CLIP_benchmark has it, or first."),
    ] = "all",
    features: Annotated[
        str, typer.Option(help="Of the probe and few-shot: raw, before the projection, or projected.")
    ] = "raw",
    objective: Annotated[
        str,
        typer.Option(
            help="Penalty of the probe: norm, not squared, as DiffCLIP's code has it, or squared, as scikit-learn has "
            "it, or both, separated by commas."
        ),
    ] = "norm",
    seeds: Annotated[int, typer.Option(help="How many, from 0 on, of the probe and of few-shot.", min=1)] = 3,
    episodes: Annotated[int, typer.Option(help="Of few-shot, for each seed.", min=1)] = 5000,
    ways: Annotated[int, typer.Option(help="Classes of an episode.", min=2)] = 5,
    shots: Annotated[int, typer.Option(help="Support images of each of them.", min=1)] = 5,
    queries: Annotated[int, typer.Option(help="Query images of each of them, or all it has.", min=1)] = 6,
    iterations: Annotated[int, typer.Option(help="At most, of the probe's L-BFGS.", min=1)] = 1000,
    out: Out = Path("antiphase-evaluate"),
    cache: Annotated[
        Path | None,
        typer.Option(
            parser=directory,
            metavar="DIRECTORY",
            help="Folder of features, kept for later runs: features/ below the data folder if not given.",
        ),
    ] = None,
    random_weights: RandomWeights = False,
    skip_bad: SkipBad = False,
    batch_size: Annotated[
        int,
        typer.Option(
            help="Images through the model at once; affects no result but by rounding.",
            min=1,
            max=MOST_AT_ONCE,
        ),
    ] = 256,
    precision: Annotated[str, typer.Option(help="Of the features: float32, or bf16 (faster).")] = "float32",
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure how much models know: retrieval, zero-shot, linear probe, few-shot, MMVP-VLM, as DiffCLIP does.

    Features are computed once for each model and data set and kept. Numbers come with 95 % intervals over the
    images, captions, episodes or pairs; the spread over seeds is told apart from them. With --against, every model is
    compared with its twin on the same images.

    **Examples**

    antiphase evaluate runs/diffclip --against runs/clip

    antiphase evaluate runs/diffclip,runs/clip --tasks retrieval --data openmoji,noto-emoji --captions first

    antiphase evaluate diffclip:cc12m.pt#lambda_init=0.8 --against diffclip:cc12m-clip.pt --data paper

    antiphase evaluate open_clip:ViT-B-32/laion2b_s34b_b79k --tasks zero-shot --data imagenet,imagenet-v2

    antiphase evaluate specimen:diffvit-0 --against specimen:vit-0 --tasks probe,few-shot --data fashion-mnist
    """
    ensembles = [*split_words(templates), *(["\n".join(prompt)] if prompt else [])]
    protocol = make_protocol(
        ensembles, captions, features, split_words(objective), seeds=seeds, episodes=episodes, ways=ways, shots=shots,
        queries=queries, iterations=iterations,
    )  # fmt: skip
    with run_folder(out, "evaluate"):
        run_evaluation(
            split_words(models), split_words(against), split_words(tasks), split_words(data), out,
            split=split, limit=limit, train_limit=train_limit, protocol=protocol, random_weights=random_weights,
            skip_bad=skip_bad,
            cache=cache, batch_size=batch_size, precision=precision, device=device, quiet=quiet,
        )  # fmt: skip


def split_words(text: str | None) -> list[str]:
    """Return the parts of a comma-separated list.

    >>> split_words("probe, few-shot"), split_words(None)
    (['probe', 'few-shot'], [])
    """
    return [part.strip() for part in (text or "").split(",") if part.strip()]
