"""The state of a batch under attack: named tensors with one row per search."""

from typing import Self

import torch
from torch import Tensor


class Rows(dict[str, Tensor]):
    """Named tensors that share their first axis."""

    def __len__(self) -> int:
        return next(iter(self.values())).shape[0] if super().__len__() else 0

    def take(self, index: Tensor | slice) -> Self:
        """Return the rows that a boolean mask, a list of positions or a slice selects."""
        return type(self)({name: tensor[index] for name, tensor in self.items()})

    def join(self, other: Self) -> Self:
        """Return these rows followed by the other's, which must have the same names unless one is empty."""
        if not len(self) or not len(other):
            return self if len(self) else other
        return type(self)({name: torch.cat([tensor, other[name]]) for name, tensor in self.items()})

    @classmethod
    def stack(cls, parts: list[Self]) -> Self:
        """Concatenate parts with the same names."""
        return (
            parts[0]
            if len(parts) == 1
            else cls({name: torch.cat([part[name] for part in parts]) for name in parts[0]})
        )

    def put(self, name: str, mask: Tensor, values: Tensor) -> None:
        """Replace the rows of a tensor selected by ``mask`` with those of ``values``."""
        old = self[name]
        self[name] = torch.where(per_row(mask, old), values, old)


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """Reshape one value per row so that it broadcasts over ``like``."""
    return values.view(-1, *[1] * (like.ndim - 1))
