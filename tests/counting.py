"""A model that counts its rows."""

import math

from torch import nn


class Counting(nn.Module):
    """A model that counts the rows it is given, and is interrupted after some of them."""

    def __init__(self, model, until=math.inf):
        super().__init__()
        self.model, self.card, self.rows, self.until = model, model.card, 0, until

    def forward(self, x):
        self.rows += len(x)
        if self.rows > self.until:
            raise KeyboardInterrupt
        return self.model(x)
