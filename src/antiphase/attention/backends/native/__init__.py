"""Kernels in C++ for a CPU with AVX-512, built with the machine's own compiler at first use and kept."""

import functools
import logging
import os
import platform
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from antiphase.files import digest, replacing

_SOURCES = sorted(path for path in Path(__file__).parent.iterdir() if path.suffix in (".cpp", ".h"))
_MAIN = Path(__file__).with_name("kernels.cpp")
_TORCH = Path(torch.__file__).parent
# the name that torch gives these instructions, and what it builds its own kernels with
_MACHINE = ("avx512f", "avx512dq", "avx512vl", "avx512bw", "fma", "f16c")
_DEFINED = ("-DCPU_CAPABILITY=AVX512", "-DCPU_CAPABILITY_AVX512")
_FLAGS = ("-std=c++20", "-O3", "-shared", "-fPIC", "-fopenmp", *_DEFINED, *(f"-m{name}" for name in _MACHINE))
_CPU = Path("/proc/cpuinfo")
_SECONDS = 300


class CannotBuildError(RuntimeError):
    """The compiler did not build the kernels."""


@functools.cache
def kernels() -> Any | None:
    """Return the kernels of ``kernels.cpp``, or None where there are none; a process asks once."""
    if why := missing():
        logging.getLogger(__name__).info("no native kernels: %s", why)
        return None
    try:
        torch.ops.load_library(str(library()))
    except (CannotBuildError, OSError) as error:
        words = f"which is slower without: {error}; ANTIPHASE_NATIVE=0 does without them in silence"
        warnings.warn(f"no native kernels for attention, {words}", RuntimeWarning, stacklevel=2)
        return None
    return torch.ops.antiphase


def missing() -> str | None:
    """Return why the kernels cannot be built here, or None."""
    if os.environ.get("ANTIPHASE_NATIVE") == "0":
        return "ANTIPHASE_NATIVE=0"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"they are for Linux on x86_64, this is {sys.platform} on {platform.machine()}"
    if (able := torch.backends.cpu.get_cpu_capability()) != "AVX512":
        return f"they need AVX512, torch sees {able}"
    if _compiler() is None:
        return "no C++ compiler: neither g++ nor c++ is on the PATH, and CXX does not name one"
    return None


def library(folder: Path | None = None) -> Path:
    """Return the compiled kernels, built if they are not in the folder (by default the user's cache) yet."""
    if folder is None:
        try:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphase" / "native"
        except RuntimeError as error:
            raise CannotBuildError("no home directory; XDG_CACHE_HOME may name a folder") from error
    if (compiler := _compiler()) is None:
        raise CannotBuildError("no C++ compiler")
    # bfloat16 rounded in one instruction
    flags = [*_FLAGS, "-mavx512bf16"] if "avx512_bf16" in _CPU.read_text() else _FLAGS
    name = digest(*(source.read_bytes() for source in _SOURCES), torch.__version__, str(_TORCH), compiler, *flags)[:16]
    if (path := folder / f"kernels-{name}.so").exists():
        return path
    logging.getLogger(__name__).info("building %s, once for this torch", path)
    try:
        with replacing(path) as temporary:
            _compile([compiler, *flags], temporary)
    except OSError as error:
        words = f"cannot write to {folder} ({error.strerror}); XDG_CACHE_HOME may name another"
        raise CannotBuildError(words) from error
    return path


def _compile(compiler: list[str], into: Path) -> None:
    linked = [f"-L{_TORCH / 'lib'}", "-ltorch_cpu", "-lc10"]
    command = [*compiler, f"-I{_TORCH / 'include'}", str(_MAIN), "-o", str(into), *linked]
    options = {"capture_output": True, "text": True, "errors": "replace", "timeout": _SECONDS}
    try:
        done = subprocess.run(command, **options, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuildError(f"{compiler[0]} did not run to its end ({error})") from error
    if done.returncode:
        lines = done.stderr.splitlines() or ["no message"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise CannotBuildError(f"{compiler[0]} failed: {first}")


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, filter(None, (os.environ.get("CXX"), "g++", "c++")))), None)
