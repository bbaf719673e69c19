"""Differential attention as functions and modules."""

from antiphase.attention.functional import differential_attention
from antiphase.attention.lambdas import FixedLambda, ScalarLambda, VectorLambda, constant, depth_scheduled
from antiphase.attention.maps import combine, softmax_maps
from antiphase.attention.modes import outputs_only
from antiphase.attention.modules import AttentionMaps, DifferentialAttention, SoftmaxAttention

__all__ = [
    "AttentionMaps",
    "DifferentialAttention",
    "FixedLambda",
    "ScalarLambda",
    "SoftmaxAttention",
    "VectorLambda",
    "combine",
    "constant",
    "depth_scheduled",
    "differential_attention",
    "outputs_only",
    "softmax_maps",
]
