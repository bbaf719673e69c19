"""Contrastive losses of a batch, and their gradients with respect to the embeddings."""

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
    """Loss of a batch, and its gradients with respect to each input; None for an absent bias."""

    loss: Float[Tensor, ""]
    image: Float[Tensor, "batch embed"]
    text: Float[Tensor, "batch embed"]
    logit_scale: Float[Tensor, ""]
    logit_bias: Float[Tensor, ""] | None


def at_least_float32(x: Tensor) -> Tensor:
    """Convert x to float32 unless it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def feature_gradients(
    image: Float[Tensor, "batch embed"],
    text: Float[Tensor, "batch embed"],
    logit_scale: Float[Tensor, ""],
    logit_bias: Float[Tensor, ""] | None = None,
    kind: Kind = "clip",
) -> FeatureGradients:
    """Compute the loss of a batch of embeddings and its gradients with respect to them.

    Given these gradients, the towers can be differentiated in parts and on several processes: L. Gao et al.,
    *Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup*, RepL4NLP 2021 (GradCache).

    Args:
        image: image embeddings, not normalised.
        text: caption embeddings in the same order, not normalised.
        logit_scale: natural logarithm of the factor on the cosines.
        logit_bias: added to the logits; for ``"siglip"``.
        kind: ``"clip"``: symmetric cross-entropy (CLIP, Figure 3); ``"siglip"``: X. Zhai et al., *Sigmoid
            Loss for Language Image Pre-Training*, ICCV 2023; ``"slip_exact"``: cross-entropy with constant keys, as
            SLIP's training code computes it on several devices, since its gather stops gradients.
    """
    if not len(image):  # all samples of the batch were unreadable
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
