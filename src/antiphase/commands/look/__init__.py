"""``antiphase look``: where a CLIP and its twin look in images for a text."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from antiphase.commands import options as fields
from antiphase.commands.command import Command

Files = Annotated[tuple[Path, ...], BeforeValidator(fields.as_tuple)]
_CLIP = "CLIP, or several separated by commas: a run directory, open_clip:NAME/TAG, hf:ORG/NAME, diffclip:PATH."


class LookOptions(fields.Options):
    """Draw where a CLIP and its twin look in images for a text, side by side.

    Relevance after Chefer et al. (ICCV 2021), for any model whose image tower has a class token; differential
    attention enters with its sign.

    **Examples**

    antiphase look runs/diffclip desk.jpg --against runs/clip --text mug --text lamp --out desk.png
    antiphase look diffclip:checkpoint.pt#lambda_init=0.8 photo.jpg --text dog --method attention,positive,negative
    antiphase look open_clip:ViT-B-16/openai a.jpg b.jpg --text dog --out dogs.pdf
    """

    model: fields.Model = Field(description=_CLIP)
    images: Annotated[Files, fields.Typed(argument=True, metavar="IMAGE")]
    """One or more image files."""
    text: Annotated[tuple[fields.Unicode, ...], BeforeValidator(fields.as_tuple)]
    """Text to look for; repeat for several texts."""
    against: fields.Models = ()
    """Model to show next to it, such as the twin with standard attention; several separated by commas."""
    method: Annotated[fields.Words, AfterValidator(fields.at_least_one)] = ("relevance", "attention")
    """Maps to draw, separated by commas: relevance (for the text, over all layers), relevance-last (last layer only),
    relevance-positive and relevance-negative (of A1 and A2), attention (A1 − λ·A2, the same for every text), positive
    (A1), negative (A2)."""
    layer: int | None = None
    """Layer of attention, positive and negative, counted from 0. If not given: the last layer, -1."""
    scale: Literal["shared", "each"] = "shared"
    """Colours: shared by all maps of a method, to compare models, images and texts; or each map up to its own largest
    value, to see where it is."""
    prompt: fields.Unicode = "a photo of {}"
    """Sentence around the text, with {} in the place of the text."""
    out: Path = Path("look.png")
    """Figure to write, .png or .pdf; next to it are the maps as .json and a page as .html."""
    resize: fields.Resize = None
    random_weights: fields.RandomWeights = False
    device: fields.Device = "auto"
    quiet: fields.Quiet = False


COMMAND = Command("look", LookOptions, f"{__name__}.run:run", f"{__name__}.run:LookResult", in_folder=False)
