"""What of antiphase works on this machine: versions, devices, kernels, data, and how to get what is missing."""

import contextlib
import importlib
import platform
import re
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.table import Table

from antiphase.attention.backends.native import CannotBuildError, library, missing
from antiphase.commands.command import Answer
from antiphase.commands.doctor import DoctorOptions
from antiphase.commands.loading import check_compiler, find_device
from antiphase.data import PAIR_SOURCES, SOURCES, load_data
from antiphase.data.emoji import NOTO_FONT
from antiphase.data.folders import data_root
from antiphase.data.sources import load_pairs
from antiphase.errors import UserError, one_line
from antiphase.precision import multiplies_bf16
from antiphase.terminal import console

_DRAWN = ("openmoji", "noto-emoji", "emoji-scenes", "emoji-objects")

# of a message about data: that nothing was downloaded, and what the line about the folder says
_KNOWN = re.compile(r", and the download failed \(.*?\)(?=: )|, or set ANTIPHASE_DATA to another folder")


def answer(_: DoctorOptions, __: str) -> Answer:
    """Print what was found, and return it."""
    report = examine()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in _lines(report):
        table.add_row(*line)
    console().print(table)
    return report


def _lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [
        (name, at or "missing: uv sync, or pip install antiphase") for name, at in report["versions"].items()
    ]
    lines += [
        (f"extra {name}", "installed" if at["ok"] else at["fix"]) for name, at in report["extras"].items()
    ]
    for at in report["devices"]:
        more = f", {at['threads']} threads" if "threads" in at else ""
        more += f", {at['memory_gib']} GiB" if "memory_gib" in at else ""
        lines.append((at["device"], f"{at['name']}{more}"))
    kernels, compiled = report["kernels"], report["compile"]
    lines.append(("native kernels", kernels["path"] or f"PyTorch is used instead: {kernels['why']}"))
    lines.append(("--compile", compiled["why"] or "works"))
    lines.append(("data in", f"{report['data_root']}; ANTIPHASE_DATA names another folder"))
    for name, at in report["data"].items():
        lines.append((name, at["fix"] or (f"report, {at['n']:,}" if "n" in at else "report")))
    return lines


def examine() -> dict[str, Any]:
    """Return what was found; nothing is downloaded, and the kernels are built if they are not there yet.

    Returns:
        ``versions`` of packages, None for one that is missing; ``extras`` and ``data``, each ``ok`` with ``fix``, the
        way to get what is missing; ``devices``; ``kernels`` and ``compile``, each ``ok`` with ``why``.
    """
    extras = _extras()
    return {
        "versions": {"python": platform.python_version()} | _versions(None),
        "extras": extras,
        "devices": _devices(),
        "kernels": _kernels(),
        "compile": _compiled(),
        "data_root": str(data_root()),
        "data": _data() | _drawn(extras["openmoji"]["fix"]),
    }


def _required(extra: str | None) -> list[str]:
    """Return the packages that antiphase needs, or one of its extras does."""
    mark = re.compile(r"extra *== *['\"](.*?)['\"]")
    found = []
    for line in requires("antiphase") or ():
        of = mark.search(line)
        if (of.group(1) if of else None) == extra:
            found.append(re.split(r"[^\w.-]", line, maxsplit=1)[0])
    return found


def _versions(extra: str | None) -> dict[str, str | None]:
    found: dict[str, str | None] = {} if extra else {"antiphase": version("antiphase")}
    for name in _required(extra):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _extras() -> dict[str, Any]:
    found = {}
    for extra in metadata("antiphase").get_all("Provides-Extra") or ():
        versions = _versions(extra)
        there = None not in versions.values()
        found[extra] = {
            "ok": there,
            "versions": versions,
            "fix": None if there else f'pip install "antiphase[{extra}]"',
        }
    return found


def _devices() -> list[dict[str, Any]]:
    capability = torch.backends.cpu.get_cpu_capability()
    if not multiplies_bf16(torch.device("cpu")):
        capability += ", without bf16 (computed in float32)"
    found: list[dict[str, Any]] = [
        {"device": "cpu", "threads": torch.get_num_threads(), "name": f"{platform.machine()}, {capability}"}
    ]
    for at in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(at)
        found.append(
            {"device": f"cuda:{at}", "name": about.name, "memory_gib": round(about.total_memory / 2**30, 1)}
        )
    if torch.backends.mps.is_available():
        found.append({"device": "mps", "name": "Apple GPU"})
    return found


def _kernels() -> dict[str, Any]:
    if why := missing():
        return {"ok": False, "path": None, "why": why}
    try:
        return {"ok": True, "path": str(library()), "why": None}
    except (CannotBuildError, OSError) as error:
        return {"ok": False, "path": None, "why": one_line(error)}


def _compiled() -> dict[str, Any]:
    try:
        check_compiler(find_device("auto"))
    except UserError as error:
        return {"ok": False, "why": str(error)}
    return {"ok": True, "why": None}


def _data() -> dict[str, Any]:
    """Return which sources open, except those that need a path and those that are drawn."""
    found = {}
    with _offline(data_root()):
        for name in dict.fromkeys((*SOURCES, *PAIR_SOURCES)):
            if ":" in name or name == "random" or name in _DRAWN:
                continue
            try:
                images: Any = (
                    load_data(name, progress=False) if name in SOURCES else load_pairs(name, progress=False)
                )
            except UserError as error:
                found[name] = {"ok": False, "fix": _KNOWN.sub("", str(error))}
            except ImportError as error:
                found[name] = {"ok": False, "fix": str(error)}
            else:
                found[name] = {"ok": True, "fix": None} | (
                    {"n": len(images)} if hasattr(images, "__len__") else {}
                )
    return found


def _drawn(fix: str | None) -> dict[str, Any]:
    """Return which sources could be drawn; it takes too long to try.

    Args:
        fix: how to install the packages that draw them; None if they are there.
    """
    noto = fix or (None if NOTO_FONT.is_file() else "apt-get install fonts-noto-color-emoji")
    return {name: {"ok": fix is None, "fix": fix} for name in _DRAWN} | {
        "noto-emoji": {"ok": noto is None, "fix": noto}
    }


@contextlib.contextmanager
def _offline(root: Path) -> Iterator[None]:
    """Refuse downloads, silence what torchvision says of them, and remove the empty folders that it makes for them."""

    def refuse(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("nothing is downloaded")

    before = set(root.glob("*"))
    importlib.import_module("torchvision.datasets")
    with (
        mock.patch.object(urllib.request, "urlopen", refuse),
        contextlib.redirect_stdout(sys.stderr),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield
    for new in set(root.glob("*")) - before:
        for folder in sorted((each for each in (new, *new.rglob("*")) if each.is_dir()), reverse=True):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()
