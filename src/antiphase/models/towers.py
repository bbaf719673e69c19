"""What every transformer tower is told: its sizes and what attends in it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt
from torch import nn

from antiphase.attention import DifferentialAttention, SoftmaxAttention
from antiphase.attention.lambdas import Parameterisation, constant, depth_scheduled
from antiphase.models.transformer import AttentionFactory

ScheduleName = Literal["constant", "depth"]


class TowerConfig(BaseModel):
    """Sizes and attention of a tower.

    ``num_heads`` counts the heads of the standard twin; a differential tower has half as many differential
    heads. The fields behind ``mlp_ratio`` but the last are differential attention's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    attention: Literal["softmax", "differential"]
    dim: PositiveInt
    depth: PositiveInt
    num_heads: PositiveInt
    mlp_ratio: PositiveFloat = 4.0
    lambda_init: float = 0.8
    lambda_schedule: ScheduleName = "constant"
    parameterisation: Parameterisation = "vector"
    head_norm: bool = True
    rescale: bool = True
    norm_eps: PositiveFloat


def attention_slot(config: TowerConfig) -> AttentionFactory:
    """Return the factory of a tower's attention modules, by the index of the layer."""

    def attention(layer: int) -> nn.Module:
        if config.attention == "softmax":
            return SoftmaxAttention(config.dim, config.num_heads)
        schedule = depth_scheduled if config.lambda_schedule == "depth" else constant(config.lambda_init)
        return DifferentialAttention(
            config.dim,
            config.num_heads,
            lambda_init=schedule(layer),
            parameterisation=config.parameterisation,
            head_norm=config.head_norm,
            rescale=config.rescale,
        )

    return attention
