"""Fashion-MNIST's files, of any images."""

import gzip
import struct
from pathlib import Path

import numpy as np


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write ``array`` as the gzip-compressed IDX file that Fashion-MNIST uses."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


def write_split(folder: Path, prefix: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Write one split's two files: ``prefix`` is ``train`` or ``t10k``."""
    write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", images)
    write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", labels)
