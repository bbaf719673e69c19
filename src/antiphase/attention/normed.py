"""Standard attention with the norm and the factor that the released DiffCLIP puts behind its differential heads."""

from jaxtyping import Float
from torch import Tensor, nn

from antiphase.attention.backends.choice import BackendName, attend
from antiphase.attention.backends.norm import HeadNorm
from antiphase.attention.backends.views import Parts
from antiphase.attention.lambdas import DEFAULT_LAMBDA_INIT
from antiphase.attention.maps import softmax_maps
from antiphase.attention.modules import AttentionMaps
from antiphase.errors import UserError

_EPS = 1e-5  # as in DifferentialAttention


class NormedAttention(nn.Module):
    """Standard multi-head self-attention: proj(scale · RMSNorm(A·V)), the norm over each head's values.

    A control for :class:`~antiphase.attention.DifferentialAttention`, which has the same norm and factor and subtracts
    a second map besides. Parameter names are those of :class:`~antiphase.attention.SoftmaxAttention` and ``norm``.

    Args:
        dim: width of the tokens.
        num_heads: number of heads; divides ``dim``.
        scale: factor behind the norm; 1 − λ_init of the differential twin, 0.2 by default.
        backend: see :func:`~antiphase.attention.backends.choice.attend`.

    Raises:
        UserError: if ``num_heads`` does not divide ``dim``.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        scale: float = 1.0 - DEFAULT_LAMBDA_INIT,
        backend: BackendName = "auto",
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise UserError(f"dim {dim} cannot be divided among {num_heads} heads")
        self.num_heads = num_heads
        self.scale = scale
        self.backend: BackendName = backend
        self.qkv = nn.Linear(dim, 3 * dim)
        self.norm = nn.RMSNorm(dim // num_heads, eps=_EPS)
        self.proj = nn.Linear(dim, dim)

    def extra_repr(self) -> str:
        """Say what the weights do not: part of a model's fingerprint."""
        return f"num_heads={self.num_heads}, scale={self.scale!r}"

    def parts(self, projected: Float[Tensor, "batch tokens width"]) -> Parts:
        """Return the queries and keys of the one branch, and the values, as views of their projection."""
        dim = projected.shape[-1] // 3
        thirds = (projected[..., start : start + dim] for start in (0, dim, 2 * dim))
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in thirds)
        return (q,), (k,), v

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], mask: Tensor | None = None
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the attended tokens; ``mask`` as in ``differential_attention``."""
        heads = attend(self.parts, 0.0, mask, self.backend, self.qkv(x), norm=self._head_norm())
        return self.proj(heads.transpose(1, 2).flatten(2))

    def finish(self, heads: Float[Tensor, "batch heads tokens width"]) -> Float[Tensor, "batch tokens dim"]:
        """Return the layer's output from A·V of each head: norm, factor, projection."""
        return self.proj(self._head_norm()(heads).transpose(1, 2).flatten(2))

    def maps(self, x: Float[Tensor, "batch tokens dim"], mask: Tensor | None = None) -> AttentionMaps:
        """Return the maps, differentiable in ``x``."""
        (q,), (k,), _ = self.parts(self.qkv(x))
        return AttentionMaps(softmax_maps(q, k, mask))

    def _head_norm(self) -> HeadNorm:
        return HeadNorm(self.norm.weight * self.scale, _EPS)
