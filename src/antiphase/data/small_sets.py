"""Sources that fit in memory: digits, Fashion-MNIST and 1,000 of its images in the package, CIFAR, and noise."""

import gzip
import json
import zlib
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import torch
from PIL import Image

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
    try:
        contents = [gzip.decompress((folder / name).read_bytes()) for name in names]
        # IDX: a header of 4 bytes and 4 for each axis, then the bytes
        images = np.frombuffer(contents[0], np.uint8, offset=16).reshape(-1, 1, 28, 28)
        labels = np.frombuffer(contents[1], np.uint8, offset=8).reshape(len(images))
    except (OSError, EOFError, zlib.error, ValueError) as error:
        fix = f"delete {' and '.join(names)} in {folder}, and download them again"
        raise UserError(f"fashion-mnist: damaged files ({one_line(error)}): {fix}") from error
    return array_set("fashion-mnist", split, FASHION_MNIST_CLASSES, images.copy(), labels.copy())


def specimens() -> ArrayImages:
    """Return the 1,000 Fashion-MNIST test images in the package."""
    with as_file(files("antiphase") / "specimens" / SPECIMEN_FILE) as path:
        return specimen_images(path)


def specimen_images(path: Path) -> ArrayImages:
    """Return Fashion-MNIST test images of a file, 28×28 grey; ids are positions in the 10,000 of the test set."""
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
