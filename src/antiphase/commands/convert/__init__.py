"""``antiphase convert``: a model with standard attention as a differential one with the same outputs."""

from typing import Annotated, Literal

from pydantic import Field

from antiphase.commands.command import Command
from antiphase.commands.options import Directory, OneModel, Options, RandomWeights, Seed, Typed
from antiphase.registry import VARIANTS


class ConvertOptions(Options):
    """Make a differential model that starts from the outputs of one with standard attention.

    It is written as a run directory, which antiphase train --model DIR trains on. λ starts at 0 and is learned, or,
    where it is σ(x·W), at ½ with both maps equal. A part of the model that cannot be converted exactly is named.

    **Examples**

    antiphase convert runs/vit --to diffvit --out runs/diffvit

    antiphase convert timm:vit_base_patch16_224.augreg2_in21k_ft_in1k --to v2 --out runs/b16-v2

    antiphase convert open_clip:ViT-B-32/openai --to grouped --ratio 4 --towers vision --out runs/clip-gda
    """

    model: OneModel
    to: Annotated[str, Typed(choices=("diffvit", *VARIANTS))]
    """Differential attention: diffvit keeps all heads and gives each a second map and V1's λ; v2, grouped or gated. v1
    and dint make one head of two and are refused."""
    out: Directory
    """Directory to write."""
    ratio: int | None = Field(None, ge=1)
    """diffvit and grouped: heads that share one subtracted map. If not given: 1 for diffvit, the largest divisor of the
    heads up to 4 for grouped."""
    towers: Literal["both", "vision", "text"] = "both"
    """Towers of a CLIP that get differential attention."""
    random_weights: RandomWeights = False
    seed: Seed = 0


COMMAND = Command("convert", ConvertOptions, "antiphase.commands.convert.run:answer")
