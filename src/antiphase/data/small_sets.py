"""Sources that fit in memory: digits, Fashion-MNIST and 1,000 of its images in the package, CIFAR, and noise."""

import gzip
import json
import struct
import zlib
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from antiphase.data.images import ArrayImages, array_set
from antiphase.errors import UserError, one_line

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
_FASHION = "T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag Ankle boot"
FASHION_MNIST_CLASSES = tuple(_FASHION.split(" ", 9))
RANDOM_IMAGES = 1000
SPECIMEN_FILE = "fashion-mnist-test-1000.png"
SPECIMEN_CHUNK = "antiphase"  # PNG text chunk with {"ids": [...], "labels": [...]} as JSON


def digits(split: str) -> ArrayImages:
    """Return scikit-learn's 1,797 handwritten digits of 8×8 pixels, 0..16 scaled to [0, 1].

    They are published without a split: a fixed fifth of each class is ``test``.
    """
    from sklearn.datasets import load_digits  # seconds to import

    values, labels = load_digits(return_X_y=True)
    pixels = np.asarray(values, dtype=np.float32).reshape(-1, 1, 8, 8) / 16
    held_out = np.zeros(len(labels), dtype=bool)
    generator = np.random.default_rng(0)
    for label in range(10):
        members = generator.permutation(np.flatnonzero(labels == label))
        held_out[members[: round(len(members) / 5)]] = True
    rows = np.flatnonzero(held_out == (split == "test"))
    return array_set("digits", split, list(map(str, range(10))), pixels[rows], labels[rows])


def fashion_mnist(split: str, root: Path) -> ArrayImages:
    """Return Fashion-MNIST (28×28 grey; 60,000 train, 10,000 test) from Debian's package or a download.

    Source: "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
    Xiao, Rasul, Vollgraf, 2017. MIT licence.
    """
    prefix = {"train": "train", "test": "t10k"}[split]
    names = (f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz")
    folder = root / "FashionMNIST" / "raw"
    if all((DEBIAN_FASHION_MNIST / name).is_file() for name in names):
        folder = DEBIAN_FASHION_MNIST
    elif not all((folder / name).is_file() for name in names):
        from torchvision.datasets import FashionMNIST

        try:
            FashionMNIST(root, train=split == "train", download=True)
        except (RuntimeError, OSError) as error:
            where = f"not found in {DEBIAN_FASHION_MNIST} or {folder}, and the download failed"
            fix = "apt-get install dataset-fashion-mnist"
            raise UserError(f"fashion-mnist: {where} ({one_line(error)}): {fix}") from error
    images, labels = (read_idx(folder / name) for name in names)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        shapes = f"images of shape {list(images.shape)} do not match labels of shape {list(labels.shape)}"
        raise UserError(f"{folder / names[0]}: {shapes}: delete both files and download them again")
    return array_set("fashion-mnist", split, FASHION_MNIST_CLASSES, images[:, None], labels)


def read_idx(path: Path) -> UInt8[Tensor, "..."]:
    """Read a gzip-compressed IDX file of unsigned bytes: 0, 0, 8, number of axes, big-endian lengths, the bytes."""
    try:
        content = bytearray(gzip.decompress(path.read_bytes()))
        if content[:3] != b"\0\0\x08":
            raise ValueError("not of unsigned bytes")
        shape = struct.unpack_from(f">{content[3]}I", content, 4)
        return torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * len(shape)).reshape(shape)
    except (OSError, EOFError, zlib.error, struct.error, LookupError, ValueError, RuntimeError) as error:
        reason = one_line(error)
        raise UserError(f"{path} is no complete IDX file ({reason}): download it again") from error


def specimen_images(path: Path | None = None) -> ArrayImages:
    """Return 1,000 Fashion-MNIST test images, 28×28 grey; ids are positions in the 10,000 of the test set."""
    if path is None:
        with as_file(files("antiphase") / "specimens" / SPECIMEN_FILE) as packaged:
            return specimen_images(packaged)
    try:
        with Image.open(path) as image:
            notes = json.loads(image.info[SPECIMEN_CHUNK])
            pixels = np.array(image).reshape(-1, 1, 28, 28)
    except (OSError, SyntaxError, KeyError, ValueError) as error:
        fault = f"is not a valid file of specimen images ({error})"
        raise UserError(f"{path} {fault}: reinstall antiphase") from error
    labels, ids = torch.tensor(notes["labels"]), torch.tensor(notes["ids"])
    return array_set("specimen-fashion-mnist", "test", FASHION_MNIST_CLASSES, pixels, labels, ids)


def cifar(name: str, split: str, root: Path) -> ArrayImages:
    """Return CIFAR-10 or CIFAR-100 (32×32 RGB; 50,000 train, 10,000 test), downloaded by torchvision.

    Source: "Learning Multiple Layers of Features from Tiny Images", Krizhevsky, 2009.
    """
    from torchvision.datasets import CIFAR10, CIFAR100

    dataset = {"cifar10": CIFAR10, "cifar100": CIFAR100}[name]
    try:
        data = dataset(root, train=split == "train", download=True)
    except (RuntimeError, OSError, EOFError) as error:
        where = f"missing or incomplete in {root / dataset.base_folder}, and the download failed"
        fix = f"put {dataset.filename} from https://www.cs.toronto.edu/~kriz/cifar.html into {root}"
        raise UserError(f"{name}: {where} ({one_line(error)}): {fix}, or set ANTIPHASE_DATA") from error
    class_names = tuple(label.replace("_", " ") for label in data.classes)  # for prompts
    pixels = np.ascontiguousarray(data.data.transpose(0, 3, 1, 2))
    return array_set(name, split, class_names, pixels, torch.tensor(data.targets))


def random_images(
    split: str,
    image_size: int | None,
    channels: int | None,
    num_classes: int | None,
    limit: int | None,
    seed: int | None,
) -> ArrayImages:
    """Return images of independent uniform 8-bit noise with uniform labels, for smoke tests.

    The splits are different draws; a smaller ``limit`` (1,000 unless given) is a prefix of a larger one.
    """
    if image_size is None or channels is None or num_classes is None:
        shape = f"image_size={image_size}, channels={channels}, num_classes={num_classes}"
        raise UserError(f"data source 'random' has no default shape: expected all three of {shape}")
    count, stream = limit or RANDOM_IMAGES, [seed or 0, ("train", "test").index(split)]
    noise, classes = (np.random.default_rng([*stream, number]) for number in (0, 1))
    pixels = noise.integers(0, 256, size=(count, channels, image_size, image_size), dtype=np.uint8)
    labels = classes.integers(0, num_classes, size=count, dtype=np.int64)
    return array_set("random", split, list(map(str, range(num_classes))), pixels, labels)
