"""``antiphase look``: its options and examples."""

from pathlib import Path
from typing import Annotated

import typer

from antiphase.cli.app import app
from antiphase.cli.options import Device, Quiet, RandomWeights
from antiphase.commands.look import run_look


@app.command()
def look(
    model: Annotated[
        str,
        typer.Argument(
            help="A CLIP, or several separated by commas: a run directory, open_clip:NAME/TAG, diffclip:PATH."
        ),
    ],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="One or more image files.")],
    text: Annotated[list[str], typer.Option(help="What to look for; once for each query.")],
    against: Annotated[str | None, typer.Option(help="The twin to stand beside it; several too.")] = None,
    method: Annotated[
        str,
        typer.Option(
            help="relevance (for the text, all layers), relevance-last (the last layer alone), relevance-positive and "
            "relevance-negative (of A1 and A2), attention (A1 − λ·A2, whatever the text), positive (A1), negative "
            "(A2); several separated by commas."
        ),
    ] = "relevance",
    layer: Annotated[
        int | None,
        typer.Option(help="Of attention, positive and negative, from 0; the last where not given."),
    ] = None,
    mask: Annotated[
        list[Path] | None,
        typer.Option(
            help="Image with the object in white, once for each IMAGE: maps are measured against it."
        ),
    ] = None,
    prompt: Annotated[
        str, typer.Option(help="Sentence around the text, which goes into {}.")
    ] = "a photo of {}",
    out: Annotated[
        Path, typer.Option(help="Figure to write, .png or .pdf; the maps go beside it as .json.")
    ] = Path("look.png"),
    random_weights: RandomWeights = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Draw where a CLIP and its twin look in images for a text, side by side.

    Relevance after Chefer et al. (ICCV 2021), for any model whose image tower has a class token; differential
    attention enters with its sign. With masks: the pointing game and the mask average precision, which need no
    threshold.

    **Examples**

    antiphase look runs/diffclip --against runs/clip desk.jpg --text mug --text lamp --out desk.png

    antiphase look diffclip:checkpoint.pt#lambda_init=0.8 photo.jpg --text dog --method attention,positive,negative

    antiphase look open_clip:ViT-B-16/openai a.jpg b.jpg --text dog --mask a-dog.png --mask b-dog.png --out dogs.pdf
    """
    specs = [*model.split(","), *(against.split(",") if against else [])]
    run_look(
        specs, images, text, out, quiet, device, methods=[part.strip() for part in method.split(",")], layer=layer,
        masks=mask or [], prompt=prompt, random_weights=random_weights,
    )  # fmt: skip
