"""Losses of whole batches of pairs, and their gradients at the features."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from open_clip.loss import ClipLoss, SigLipLoss
from torch import Tensor

Kind = Literal["clip", "siglip", "slip_exact"]
Loss = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # directions, directions, scale, bias


class FeatureGradients(NamedTuple):
    """The loss of a batch and its gradients.

    Attributes:
        loss: one number.
        image: at the image embeddings.
        text: at the text embeddings.
        logit_scale: at the logarithm of the scale.
        logit_bias: at the bias; None where there is none.
    """

    loss: Float[Tensor, ""]
    image: Float[Tensor, "batch embed"]
    text: Float[Tensor, "batch embed"]
    logit_scale: Float[Tensor, ""]
    logit_bias: Float[Tensor, ""] | None


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32, or as it is where that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def feature_gradients(
    image: Float[Tensor, "batch embed"],
    text: Float[Tensor, "batch embed"],
    logit_scale: Float[Tensor, ""],
    logit_bias: Float[Tensor, ""] | None = None,
    kind: Kind = "clip",
) -> FeatureGradients:
    """Return the loss of a batch of embeddings that are not normalised, and its gradients.

    The towers' gradient is this one pulled back through each sample by itself, so a batch of any size can
    be pulled back in parts: L. Gao et al., *Scaling Deep Contrastive Learning Batch Size under Memory
    Limited Setup*, RepL4NLP 2021 (GradCache). For the same reason, processes that each hold all embeddings
    need to exchange nothing else.

    Args:
        image: embeddings of the images.
        text: those of their captions, in the same order.
        logit_scale: logarithm of what cosines are multiplied by.
        logit_bias: added to the logits; for ``"siglip"``.
        kind: ``"clip"``: symmetric cross-entropy (CLIP, Figure 3); ``"siglip"``: X. Zhai et al., *Sigmoid
            Loss for Language Image Pre-Training*, ICCV 2023; ``"slip_exact"``: cross-entropy whose keys are
            constants, as the gather of SLIP's training code leaves them on two devices or more.
    """
    if not len(image):  # a batch of bad samples alone: nothing to learn
        bias = None if logit_bias is None else torch.zeros_like(logit_bias)
        return FeatureGradients(image.new_zeros(()), image, text, torch.zeros_like(logit_scale), bias)
    with torch.enable_grad():
        given = (image, text, logit_scale, *([] if logit_bias is None else [logit_bias]))
        leaves = [at_least_float32(each.detach()).requires_grad_() for each in given]
        one, two = (F.normalize(leaf, dim=-1) for leaf in leaves[:2])
        loss = _LOSSES[kind](one, two, leaves[2].exp(), leaves[3] if logit_bias is not None else None)
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
    own = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]
    return FeatureGradients(loss.detach(), own[0], own[1], own[2], own[3] if logit_bias is not None else None)


def _clip(image: Tensor, text: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    return ClipLoss()(image, text, scale, bias)


def _siglip(image: Tensor, text: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    return SigLipLoss()(image, text, scale, 0.0 if bias is None else bias)


def _slip_exact(image: Tensor, text: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    own = torch.arange(len(image), device=image.device)
    by_image = F.cross_entropy(scale * image @ text.detach().T, own)
    by_text = F.cross_entropy(scale * text @ image.detach().T, own)
    return (by_image + by_text) / 2


_LOSSES: dict[str, Loss] = {"clip": _clip, "siglip": _siglip, "slip_exact": _slip_exact}
