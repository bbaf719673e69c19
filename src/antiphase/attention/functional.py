"""Differential attention as a pure function of tensors.

Source: T. Ye et al., *Differential Transformer*, ICLR 2025; as used by *Understanding Sensitivity of
Differential Attention through the Lens of Adversarial Robustness* (2025), Section 3.2.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from antiphase.arguments import validated
from antiphase.attention.backends.choice import BackendName, attend
from antiphase.attention.maps import check_broadcast


@validated
def differential_attention(
    q1: Float[Tensor, "#batch #heads queries width"],
    k1: Float[Tensor, "#batch #heads keys width"],
    q2: Float[Tensor, "#batch #heads queries width"],
    k2: Float[Tensor, "#batch #heads keys width"],
    v: Float[Tensor, "#batch #heads keys value_width"],
    lam: float | Float[Tensor, "..."],
    *,
    mask: Tensor | None = None,
    backend: BackendName = "auto",
) -> Float[Tensor, "batch heads queries value_width"]:
    """Return (softmax(q1 k1ᵀ/√width) − λ·softmax(q2 k2ᵀ/√width)) v.

    λ is one number, one for each head or one for each query: ``()``, ``(heads,)``, ``(batch, heads, queries)``. The
    ``mask``, broadcastable to ``(batch, heads, queries, keys)``, is boolean (True: may be attended to) or added to the
    scores; a query that may attend to nothing gets zeros. For ``backend`` see
    :func:`~antiphase.attention.backends.choice.attend`.
    """
    if mask is not None:
        check_broadcast("mask", mask, torch.Size([*q1.shape[:3], k1.shape[2]]))
    return attend(lambda q1, k1, q2, k2, v: ((q1, q2), (k1, k2), v), lam, mask, backend, q1, k1, q2, k2, v)
