"""``antiphase evaluate``: its options and examples."""

from pathlib import Path
from typing import Annotated

import typer

from antiphase.cli.app import app
from antiphase.cli.options import Device, Limit, Out, Quiet, RandomWeights, Split
from antiphase.commands.evaluate import run_evaluation


@app.command()
def evaluate(
    models: Annotated[
        str,
        typer.Argument(
            help="CLIP, or several separated by commas: a run directory, open_clip:NAME/TAG, "
            "diffclip:PATH#lambda_init=0.8."
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            help="Pairs, or several sets separated by commas: openmoji, noto-emoji, coco, karpathy:JSON, csv:PATH."
        ),
    ] = "openmoji",
    split: Split = "test",
    limit: Limit = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="Template of the class prompts, {} for the name; several are averaged. The set's own texts, or "
            "'a photo of {}', where not given."
        ),
    ] = None,
    captions: Annotated[
        str,
        typer.Option(help="Which captions of an image retrieve it: all, as CLIP_benchmark has it, or first."),
    ] = "all",
    out: Out = Path("antiphase-evaluate"),
    random_weights: RandomWeights = False,
    batch_size: Annotated[
        int, typer.Option(help="Images through the model at once; affects no result.", min=1)
    ] = 256,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure how well CLIPs retrieve and classify without training: R@1, R@5 both ways, zero-shot accuracy.

    Image R@k counts the captions whose image is among the first k, text R@k the images whose caption is;
    intervals are Wilson's.

    **Examples**

    antiphase evaluate runs/clip,runs/diffclip --data openmoji,noto-emoji --captions first

    antiphase evaluate open_clip:ViT-B-32/laion2b_s34b_b79k --data karpathy:dataset_flickr30k.json
    """
    run_evaluation(
        models.split(","), data.split(","), out, quiet, device, split=split, limit=limit,
        prompts=prompt or [], captions=captions, batch_size=batch_size, random_weights=random_weights,
    )  # fmt: skip
