"""The number format of forward passes."""

from typing import Literal

Precision = Literal["float32", "bf16"]
