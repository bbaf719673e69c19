"""Differential attention and its standard twin as pure functions of tensors.

    (softmax(q1 k1ᵀ/√width) − λ·softmax(q2 k2ᵀ/√width)) v

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
    q1: Float[Tensor, "#batch #heads #queries #width"],
    k1: Float[Tensor, "#batch #heads #keys #width"],
    q2: Float[Tensor, "#batch #heads #queries #width"],
    k2: Float[Tensor, "#batch #heads #keys #width"],
    v: Float[Tensor, "#batch #heads #keys #value_width"],
    lam: float | Float[Tensor, "..."],
    *,
    mask: Tensor | None = None,
    backend: BackendName = "auto",
) -> Float[Tensor, "batch heads queries value_width"]:
    """Return (softmax(q1 k1ᵀ/√width) − λ·softmax(q2 k2ᵀ/√width)) v.

    Args:
        q1: queries of the positive map.
        k1: keys of the positive map.
        q2: queries of the negative map.
        k2: keys of the negative map.
        v: values, of any width of their own.
        lam: λ, one number, one for each head or one for each query: ``()``, ``(heads,)``, ``(batch, heads, queries)``.
        mask: broadcastable to ``(batch, heads, queries, keys)``; boolean (True: may be attended to) or
            added to the scores. A query that may attend to nothing gets zeros.
        backend: see :func:`~antiphase.attention.backends.choice.attend`.

    Raises:
        UserError: for a backend that cannot take the inputs, heads that do not match λ, or a mask of integers.
    """
    if mask is not None:
        check_broadcast("mask", mask, torch.Size([*q1.shape[:3], k1.shape[2]]))
    return attend(lambda q1, k1, q2, k2, v: ((q1, q2), (k1, k2), v), lam, mask, backend, q1, k1, q2, k2, v)


def standard_attention(
    q: Float[Tensor, "batch heads queries width"],
    k: Float[Tensor, "batch heads keys width"],
    v: Float[Tensor, "batch heads keys value_width"],
    *,
    mask: Tensor | None = None,
    backend: BackendName = "auto",
) -> Float[Tensor, "batch heads queries value_width"]:
    """Return softmax(q kᵀ/√width) v; arguments as in :func:`differential_attention`."""
    return attend(lambda q, k, v: ((q,), (k,), v), 0.0, mask, backend, q, k, v)
