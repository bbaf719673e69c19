"""Differential attention as functions and modules."""

from antiphase.attention.functional import differential_attention
from antiphase.attention.lambdas import FixedLambda, GateLambda, ScalarLambda, VectorLambda, constant, depth_scheduled
from antiphase.attention.layouts import from_layout, to_layout
from antiphase.attention.maps import combine, softmax_maps
from antiphase.attention.modes import outputs_only
from antiphase.attention.modules import AttentionMaps, DifferentialAttention, SoftmaxAttention
from antiphase.attention.variants import Variant

__all__ = ["AttentionMaps", "DifferentialAttention", "FixedLambda", "GateLambda", "ScalarLambda", "SoftmaxAttention"]
__all__ += ["Variant", "VectorLambda", "combine", "constant", "depth_scheduled", "differential_attention"]
__all__ += ["from_layout", "outputs_only", "softmax_maps", "to_layout"]
