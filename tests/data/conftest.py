"""Small data sets in the real layouts, and a network that is not there."""

import functools
import socket
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from antiphase.data import image_sets
from tests.data import idx_files


def _write_fashion_mnist(folder: Path, prefix: str = "t10k", count: int = 23) -> tuple[np.ndarray, np.ndarray]:
    """Write one split of Fashion-MNIST's two files and return its images and labels."""
    generator = np.random.default_rng(count)
    images = generator.integers(0, 256, size=(count, 28, 28), dtype=np.uint8)
    labels = np.arange(count, dtype=np.uint8) % 10
    idx_files.write_split(folder, prefix, images, labels)
    return images, labels


def _write_image(path: Path, seed: int = 0, size: tuple[int, int] = (13, 11), mode: str = "RGB") -> None:
    """Write a noise image of ``size`` (width, height); the suffix of ``path`` chooses the format."""
    generator = np.random.default_rng(seed)
    bands = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    pixels = generator.integers(0, 256, size=(size[1], size[0], *bands), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, format="JPEG" if path.suffix.upper() == ".JPEG" else None)


@pytest.fixture
def no_debian(monkeypatch, tmp_path):
    """Hide Debian's Fashion-MNIST, where this machine has it."""
    monkeypatch.setattr(image_sets, "DEBIAN_FASHION_MNIST", tmp_path / "not-installed")


@pytest.fixture
def closed_url(monkeypatch):
    """An address at which nobody answers."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return f"http://127.0.0.1:{port}/"


@pytest.fixture
def served(monkeypatch, tmp_path):
    """A folder, and the address that serves it on this machine."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def write_idx():
    """``write_idx(path, array)``."""
    return idx_files.write_idx


@pytest.fixture
def write_fashion_mnist():
    """``write_fashion_mnist(folder, prefix="t10k", count=23)``, returns images and labels."""
    return _write_fashion_mnist


@pytest.fixture
def write_image():
    """``write_image(path, seed=0, size=(13, 11), mode="RGB")``."""
    return _write_image
