"""Models that are not ours, for benchmarks: ``--model python:benchmarks/models.py:cnn``."""

import timm
import torch
import torch.nn.functional as F
from torch import nn

import antiphase as ap

MEAN, STD = 0.286, 0.353  # of Fashion-MNIST


def cnn() -> nn.Module:
    """Return a small CNN with batch norm, trained for some seconds on the images in the package."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        blocks: list[nn.Module] = [nn.BatchNorm2d(1)]
        for before, after in ((1, 32), (32, 64)):
            blocks += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * 7 * 7, 10))
        return _trained(model, epochs=8)


def resnet18() -> nn.Module:
    """Return timm's ``resnet18`` for one channel and 10 classes, trained for some seconds on the same images."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _trained(timm.create_model("resnet18", in_chans=1, num_classes=10), epochs=3)


def vit_tiny() -> nn.Module:
    """Return timm's ``vit_tiny_patch16_224`` for 28 pixels in patches of 4, one channel and 10 classes, likewise."""
    sizes = {"img_size": 28, "patch_size": 4, "in_chans": 1, "num_classes": 10}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _trained(timm.create_model("vit_tiny_patch16_224", **sizes), epochs=8)


def _trained(model: nn.Module, epochs: int) -> nn.Module:
    data = ap.data.load_data("specimen-fashion-mnist")
    images, labels = data.images(range(len(data))), data.labels
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model((images[rows] - MEAN) / STD), labels[rows]).backward()
            optimizer.step()
    return nn.Sequential(_Standardise(), model).eval()


class _Standardise(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (images - MEAN) / STD
