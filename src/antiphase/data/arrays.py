"""Sources that fit in memory: scikit-learn's digits, Fashion-MNIST, CIFAR and uniform noise."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from antiphase.data.idx import read_idx
from antiphase.data.images import ArrayImages
from antiphase.errors import UserError, one_line

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
FASHION_MNIST_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
RANDOM_IMAGES = 1000


def digits(split: str) -> ArrayImages:
    """Return scikit-learn's 1,797 handwritten digits of 8×8 pixels, 0..16 scaled to [0, 1].

    They are published without a split: a fixed fifth of each class is ``test``.
    """
    from sklearn.datasets import load_digits  # seconds to import

    values, labels = load_digits(return_X_y=True)
    pixels = np.asarray(values, dtype=np.float32).reshape(-1, 1, 8, 8) / 16
    labels = np.asarray(labels, dtype=np.int64)
    held_out = np.zeros(len(labels), dtype=bool)
    generator = np.random.default_rng(0)
    for label in range(10):
        members = generator.permutation(np.flatnonzero(labels == label))
        held_out[members[: round(len(members) / 5)]] = True
    rows = np.flatnonzero(held_out == (split == "test"))
    return ArrayImages(
        name="digits",
        split=split,
        class_names=tuple(str(label) for label in range(10)),
        ids=torch.arange(len(rows)),
        labels=torch.from_numpy(labels[rows]),
        pixels=torch.from_numpy(pixels[rows]),
    )


def fashion_mnist(split: str, root: Path) -> ArrayImages:
    """Return Fashion-MNIST (28×28 grey; 60,000 train, 10,000 test) from Debian's package or a download.

    Source: "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
    Xiao, Rasul, Vollgraf, 2017. MIT licence.

    Raises:
        UserError: if the files are not installed and cannot be downloaded, or are damaged.
    """
    prefix = {"train": "train", "test": "t10k"}[split]
    names = (f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz")
    folders = (DEBIAN_FASHION_MNIST, root / "FashionMNIST" / "raw")
    folder = next((folder for folder in folders if all((folder / name).is_file() for name in names)), None)
    if folder is None:
        from torchvision.datasets import FashionMNIST

        folder = folders[1]
        try:
            FashionMNIST(root, train=split == "train", download=True)
        except (RuntimeError, OSError) as error:
            raise UserError(
                f"fashion-mnist: not found in {folders[0]} or {folder}, and the download failed "
                f"({one_line(error)}): apt-get install dataset-fashion-mnist"
            ) from error
    images, labels = (read_idx(folder / name) for name in names)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise UserError(
            f"{folder / names[0]}: images of shape {list(images.shape)} do not match labels of shape "
            f"{list(labels.shape)}: delete both files and download them again"
        )
    return _numbered("fashion-mnist", split, FASHION_MNIST_CLASSES, images[:, None], labels.long())


def cifar(classes: int, split: str, root: Path) -> ArrayImages:
    """Return CIFAR-10 or CIFAR-100 (32×32 RGB; 50,000 train, 10,000 test), downloaded by torchvision.

    Source: "Learning Multiple Layers of Features from Tiny Images", Krizhevsky, 2009.

    Raises:
        UserError: if the files are not in ``root`` and cannot be downloaded.
    """
    from torchvision.datasets import CIFAR10, CIFAR100

    dataset = {10: CIFAR10, 100: CIFAR100}[classes]
    try:
        data = dataset(root, train=split == "train", download=True)
    except (RuntimeError, OSError, EOFError) as error:
        raise UserError(
            f"cifar{classes}: missing or incomplete in {root / dataset.base_folder}, and the download failed "
            f"({one_line(error)}): put {dataset.filename} from https://www.cs.toronto.edu/~kriz/cifar.html "
            f"into {root}, or set ANTIPHASE_DATA to another folder"
        ) from error
    pixels = torch.from_numpy(np.ascontiguousarray(data.data.transpose(0, 3, 1, 2)))
    names = tuple(name.replace("_", " ") for name in data.classes)  # for prompts
    return _numbered(f"cifar{classes}", split, names, pixels, torch.tensor(data.targets))


def random_images(
    split: str,
    image_size: int | None,
    channels: int | None,
    num_classes: int | None,
    count: int | None,
    seed: int | None,
) -> ArrayImages:
    """Return images of independent uniform 8-bit noise with uniform labels, for smoke tests.

    Args:
        split: ``train`` and ``test`` are different draws.
        image_size: height and width in pixels.
        channels: channels of each image.
        num_classes: labels are drawn from 0 to ``num_classes - 1``.
        count: number of images; None: 1,000. A smaller count is a prefix of a larger one.
        seed: random seed; None: 0.

    Raises:
        UserError: if ``image_size``, ``channels`` or ``num_classes`` is missing.
    """
    if image_size is None or channels is None or num_classes is None:
        given = f"image_size={image_size}, channels={channels}, num_classes={num_classes}"
        raise UserError(f"data source 'random' has no default shape: expected all three of {given}")
    count = RANDOM_IMAGES if count is None else count
    stream = [seed or 0, ("train", "test").index(split)]
    noise = np.random.default_rng([*stream, 0])
    classes = np.random.default_rng([*stream, 1])
    pixels = noise.integers(0, 256, size=(count, channels, image_size, image_size), dtype=np.uint8)
    labels = classes.integers(0, num_classes, size=count, dtype=np.int64)
    names = tuple(str(label) for label in range(num_classes))
    return _numbered("random", split, names, torch.from_numpy(pixels), torch.from_numpy(labels))


def _numbered(
    name: str,
    split: str,
    class_names: tuple[str, ...],
    pixels: UInt8[Tensor, "n c h w"],
    labels: Int64[Tensor, " n"],
) -> ArrayImages:
    """Return a full split with ids counted from 0."""
    ids = torch.arange(len(labels))
    return ArrayImages(name=name, split=split, class_names=class_names, ids=ids, labels=labels, pixels=pixels)
