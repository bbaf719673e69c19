"""Sources that fit in memory: digits, Fashion-MNIST and 1,000 of its images in the package, CIFAR, and noise."""

import gzip
import json
import math
import os
import struct
import zlib
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, PngImagePlugin
from torch import Tensor

from antiphase.data.folders import data_root
from antiphase.data.images import ArrayImages
from antiphase.errors import UserError, one_line
from antiphase.files import replacing

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
SPECIMEN_FILE = "fashion-mnist-test-1000.png"
PER_CLASS = 100
_CHUNK = "antiphase"  # PNG text chunk with {"ids": [...], "labels": [...]} as JSON


def _image_set(
    name: str,
    split: str,
    class_names: tuple[str, ...],
    pixels: Tensor | np.ndarray,
    labels: Tensor | np.ndarray,
    ids: Tensor | None = None,
) -> ArrayImages:
    return ArrayImages(
        name=name,
        split=split,
        class_names=class_names,
        ids=torch.arange(len(labels)) if ids is None else ids,
        labels=torch.as_tensor(labels, dtype=torch.int64),
        pixels=torch.as_tensor(pixels),
    )


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


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
    return _image_set("digits", split, _numbers(10), pixels[rows], labels[rows])


def fashion_mnist(split: str, root: Path) -> ArrayImages:
    """Return Fashion-MNIST (28×28 grey; 60,000 train, 10,000 test) from Debian's package or a download.

    Source: "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
    Xiao, Rasul, Vollgraf, 2017. MIT licence.

    Raises:
        UserError: if the files are not installed and cannot be downloaded, or are damaged.
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
            raise UserError(
                f"fashion-mnist: not found in {DEBIAN_FASHION_MNIST} or {folder}, and the download failed "
                f"({one_line(error)}): apt-get install dataset-fashion-mnist"
            ) from error
    images, labels = (read_idx(folder / name) for name in names)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise UserError(
            f"{folder / names[0]}: images of shape {list(images.shape)} do not match labels of shape "
            f"{list(labels.shape)}: delete both files and download them again"
        )
    return _image_set("fashion-mnist", split, FASHION_MNIST_CLASSES, images[:, None], labels)


def read_idx(path: Path) -> UInt8[Tensor, "..."]:
    """Read a gzip-compressed IDX file of unsigned bytes, the format of the MNIST family.

    Layout: two zero bytes, the type code 8, the number of axes, the length of each axis as a big-endian 32-bit
    number, then the bytes, last axis fastest.

    Raises:
        UserError: if the file is missing, truncated, damaged, or not an IDX file of unsigned bytes.
    """
    try:
        with gzip.open(path) as file:
            content = bytearray(file.read())
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist: download the data set again") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path} is truncated or damaged ({error}): delete it and download it again"
        ) from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise UserError(f"{path} is not an IDX file of unsigned bytes: delete it and download it again")
    axes = content[3]
    header = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", content[4:header]) if len(content) >= header else ()
    if not shape or len(content) != header + math.prod(shape):
        raise UserError(
            f"{path} has {len(content)} bytes, expected {header + math.prod(shape)} from its header, {axes} axes of "
            f"lengths {list(shape)}: delete it and download it again"
        )
    return torch.frombuffer(content, dtype=torch.uint8)[header:].reshape(shape)


def specimen_images(path: Path | None = None) -> ArrayImages:
    """Return 1,000 Fashion-MNIST test images, 28×28 grey; ids are positions in the 10,000 of the test set.

    Args:
        path: file written by ``make_specimen_images``; None: the one in the package.

    Raises:
        UserError: if the file is unreadable.
    """
    if path is None:
        with as_file(files("antiphase") / "specimens" / SPECIMEN_FILE) as packaged:
            return specimen_images(packaged)
    try:
        with Image.open(path) as image:
            notes = json.loads(image.info[_CHUNK])
            pixels = np.array(image).reshape(-1, 1, 28, 28)
    except (OSError, SyntaxError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} is not a valid file of specimen images ({error}): reinstall antiphase"
        ) from error
    labels, ids = torch.tensor(notes["labels"]), torch.tensor(notes["ids"])
    return _image_set("specimen-fashion-mnist", "test", FASHION_MNIST_CLASSES, pixels, labels, ids)


def make_specimen_images(out: str | os.PathLike[str], *, root: str | os.PathLike[str] | None = None) -> None:
    """Write the file of specimens from the full test set: 100 images per class by a fixed seed, sorted by position.

    Pixels, ids and labels are reproducible; the compression may depend on the zlib version. To regenerate the file:
    ``python -c "from antiphase.data.small_sets import make_specimen_images as make; make('OUT.png')"``.
    """
    whole = fashion_mnist("test", data_root(root))
    generator = np.random.default_rng(0)
    of_class = [np.flatnonzero(whole.labels.numpy() == label) for label in range(len(whole.class_names))]
    chosen = np.sort(np.concatenate([generator.choice(rows, PER_CLASS, replace=False) for rows in of_class]))
    specimen = whole.take(torch.from_numpy(chosen))
    notes = PngImagePlugin.PngInfo()
    told = json.dumps({"ids": specimen.ids.tolist(), "labels": specimen.labels.tolist()})
    notes.add_text(_CHUNK, told, zip=True)
    with replacing(out) as temporary:
        tall = specimen.pixels.reshape(-1, specimen.pixels.shape[-1]).numpy()
        Image.fromarray(tall).save(temporary, format="PNG", optimize=True, pnginfo=notes)


def cifar(name: str, split: str, root: Path) -> ArrayImages:
    """Return CIFAR-10 or CIFAR-100 (32×32 RGB; 50,000 train, 10,000 test), downloaded by torchvision.

    Source: "Learning Multiple Layers of Features from Tiny Images", Krizhevsky, 2009.

    Raises:
        UserError: if the files are not in ``root`` and cannot be downloaded.
    """
    from torchvision.datasets import CIFAR10, CIFAR100

    dataset = {"cifar10": CIFAR10, "cifar100": CIFAR100}[name]
    try:
        data = dataset(root, train=split == "train", download=True)
    except (RuntimeError, OSError, EOFError) as error:
        raise UserError(
            f"{name}: missing or incomplete in {root / dataset.base_folder}, and the download failed "
            f"({one_line(error)}): put {dataset.filename} from https://www.cs.toronto.edu/~kriz/cifar.html into "
            f"{root}, or set ANTIPHASE_DATA to another folder"
        ) from error
    class_names = tuple(label.replace("_", " ") for label in data.classes)  # for prompts
    pixels = np.ascontiguousarray(data.data.transpose(0, 3, 1, 2))
    return _image_set(name, split, class_names, pixels, torch.tensor(data.targets))


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
        shape = f"image_size={image_size}, channels={channels}, num_classes={num_classes}"
        raise UserError(f"data source 'random' has no default shape: expected all three of {shape}")
    count = RANDOM_IMAGES if count is None else count
    stream = [seed or 0, ("train", "test").index(split)]
    noise = np.random.default_rng([*stream, 0])
    classes = np.random.default_rng([*stream, 1])
    pixels = noise.integers(0, 256, size=(count, channels, image_size, image_size), dtype=np.uint8)
    labels = classes.integers(0, num_classes, size=count, dtype=np.int64)
    return _image_set("random", split, _numbers(num_classes), pixels, labels)
