"""Small models for the tests of attacks, whose logits know nothing of the batch to the last bit."""

import math

import torch
from torch import nn


def images(count, shape=(3, 7, 5), seed=0):
    """Return images whose pixels are far from their bounds."""
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed)) * 0.3 + 0.35


class Linear(nn.Module):
    """Logits = W·x + b. Sums run in float64, image by image: a matrix product may round by place in the batch."""

    def __init__(self, classes, size=105, seed=1, scale=0.3):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(scale * torch.randn(classes, size, generator=generator))
        self.bias = nn.Parameter(0.1 * torch.randn(classes, generator=generator))

    def forward(self, x):
        products = x.flatten(1)[:, None].double() * self.weight.double()
        return (products.sum(2) + self.bias).to(x.dtype)


def network(classes=5, size=105, hidden=13, seed=2):
    """Return two linear layers with a tanh between them."""
    return nn.Sequential(
        Linear(hidden, size, seed, 1.5 / math.sqrt(size)), nn.Tanh(), Linear(classes, hidden, seed + 1, 1.0)
    )


def least(model, x, norm):
    """Return the least norm that changes a linear model's prediction where no pixel meets its bound."""
    logits = model(x).detach().double()
    label = logits.argmax(1)
    weight = model.weight.detach().double()
    gap = logits.gather(1, label[:, None]) - logits
    slope = (weight[label][:, None] - weight).norm(p={"linf": 1, "l2": 2, "l1": torch.inf}[norm], dim=2)
    return (gap / slope).scatter(1, label[:, None], torch.inf).amin(1)


class Shifted(nn.Module):
    """Adds a number to every logit."""

    def __init__(self, inner, shift):
        super().__init__()
        self.inner, self.shift = inner, shift

    def forward(self, x):
        return self.inner(x) + self.shift


class Asked(nn.Module):
    """Several networks; the context of an image says which of them sees it."""

    def __init__(self, count=3):
        super().__init__()
        self.networks = nn.ModuleList(network(seed=10 * number) for number in range(count))

    def forward(self, x, which):
        return torch.stack([one(x) for one in self.networks])[which, torch.arange(len(x))]


class Coarse(nn.Module):
    """A network whose logits low precision rounds to one of so many steps a unit; gradients do not see it."""

    def __init__(self, steps=8):
        super().__init__()
        self.network, self.steps = network(), steps

    def forward(self, x):
        logits = self.network(x)
        if torch.is_autocast_enabled("cpu"):
            logits = logits + ((self.steps * logits).round() / self.steps - logits).detach()
        return logits
