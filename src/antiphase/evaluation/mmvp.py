"""MMVP-VLM: pairs of images that look alike to CLIP, each with its own statement."""

from typing import Annotated

from jaxtyping import Bool, Float
from torch import Tensor

from antiphase.arguments import FINITE, validated

PROMPT = "a photo of "  # the authors' code; put before each statement


@validated
def right_pairs(
    images: Annotated[Float[Tensor, "pairs 2 embed"], FINITE],
    texts: Annotated[Float[Tensor, "pairs 2 embed"], FINITE],
) -> Bool[Tensor, " pairs"]:
    """Return whether both statements of each pair select their own image.

    A statement t selects image 1 if p(image 1 | t) > ½, with p the softmax over the two images of 100·cos(image, t),
    and image 2 otherwise. A pair is solved if statement 1 selects image 1 and statement 2 image 2.

    Source: S. Tong et al., *Eyes Wide Shut? Exploring the Visual Shortcomings of Multimodal LLMs*, CVPR 2024,
    Section 3, and their ``evaluate_vlm.py``.

    Args:
        images: unit vectors.
        texts: unit vectors of the statements behind ``PROMPT``.
    """
    first = (100.0 * (texts @ images.mT)).softmax(-1)[..., 0]  # of each statement
    return (first[:, 0] > 0.5) & ~(first[:, 1] > 0.5)
