"""What of antiphase works on this machine: versions, devices, kernels, data, and how to get what is missing."""

import contextlib
import importlib
import platform
import re
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.table import Column, Table

from antiphase.attention.backends.native import CannotBuildError, library, missing
from antiphase.commands import doctor, loading
from antiphase.commands.command import Answer
from antiphase.data import PAIR_SOURCES, SOURCES, load_data
from antiphase.data.emoji import ICON_SETS, NOTO_FONT, icon_archive
from antiphase.data.folders import data_root
from antiphase.data.sources import EMOJI_SETS, load_pairs
from antiphase.errors import UserError, install, one_line
from antiphase.precision import multiplies_bf16
from antiphase.terminal import console

_DRAWN = (*EMOJI_SETS, "emoji-scenes", "emoji-objects")
_KNOWN = re.compile(r", and the download failed \(.*?\)(?=: )")  # of a message about data


def answer(_: doctor.DoctorOptions, __: str) -> Answer:
    """Print what was found, and return it."""
    report = examine()
    lines = {name: number or "missing: install antiphase again" for name, number in report["versions"].items()}
    lines |= {f"extra {name}": extra["fix"] or "installed" for name, extra in report["extras"].items()}
    lines |= {device["device"]: device["name"] for device in report["devices"]}
    lines |= {name: report[name]["fix"] or "ready" for name in ("kernels", "compile")}
    lines["data in"] = f"{report['data_root']}; ANTIPHASE_DATA names another folder"
    for name, source in report["data"].items():
        lines[name] = source["fix"] or (f"ready, {source['n']:,}" if "n" in source else "ready")
    table = Table(Column(no_wrap=True), Column(overflow="fold"), box=None, show_header=False, pad_edge=False)
    for line in lines.items():
        table.add_row(*line)
    console().print(table)
    return report


def examine() -> dict[str, Any]:
    """Return what was found; each part is ``ok``, or has ``fix``: why it is not, and how to get what is missing."""
    extras = {}
    for extra in metadata("antiphase").get_all("Provides-Extra") or ():
        versions = _versions(extra)
        extras[extra] = _state(None if all(versions.values()) else install(extra))
        extras[extra]["versions"] = versions
    python = {"python": platform.python_version(), "antiphase": version("antiphase")}
    report = {"versions": python | _versions(None), "extras": extras, "devices": _devices()}
    report |= {"kernels": _state(missing() or _failure(library))}
    report |= {"compile": _state(_failure(lambda: loading.check_compiler(loading.find_device("auto"))))}
    return report | {"data_root": str(data_root()), "data": _data() | _drawn(extras["openmoji"]["fix"])}


def _state(fix: str | None) -> dict[str, Any]:
    return {"ok": not fix, "fix": fix or None}


def _failure(action: Callable[[], Any]) -> str | None:
    try:
        action()
    except (UserError, CannotBuildError, OSError) as error:
        return one_line(error)
    return None


def _versions(extra: str | None) -> dict[str, str | None]:
    """Return the versions of the packages that antiphase needs, or one of its extras does."""
    versions: dict[str, str | None] = {}
    for line in requires("antiphase") or ():
        marked = re.search(r"extra *== *['\"](.*?)['\"]", line)
        if (marked and marked[1]) == extra:
            name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
            versions[name] = None
            with contextlib.suppress(PackageNotFoundError):
                versions[name] = version(name)
    return versions


def _devices() -> list[dict[str, Any]]:
    name = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    name += "" if multiplies_bf16(torch.device("cpu")) else ", without bf16 (computed in float32)"
    devices = [{"device": "cpu", "name": f"{name}, {torch.get_num_threads()} threads"}]
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        devices.append({"device": f"cuda:{index}", "name": f"{about.name}, {about.total_memory / 2**30:.1f} GiB"})
    return devices + [{"device": "mps", "name": "Apple GPU"}] * torch.backends.mps.is_available()


def _data() -> dict[str, Any]:
    opened: dict[str, Any] = {}
    with _offline(data_root()):
        for name in {**SOURCES, **PAIR_SOURCES}:
            if ":" in name or name in ("random", *_DRAWN):
                continue
            try:
                images: Any = (load_data if name in SOURCES else load_pairs)(name, progress=False)
                opened[name] = _state(None) | ({"n": len(images)} if hasattr(images, "__len__") else {})
            except (UserError, ImportError) as error:
                opened[name] = _state(_KNOWN.sub("", str(error)))
    return opened


def _drawn(fix: str | None) -> dict[str, Any]:
    """Return which sources could be drawn, which takes too long to try, from how to install what draws them."""
    noto = fix or (None if NOTO_FONT.is_file() else "apt-get install fonts-noto-color-emoji")
    fixes = dict.fromkeys(_DRAWN, fix) | {"noto-emoji": noto}
    for artist in ICON_SETS if fix is None else ():
        try:
            icon_archive(artist, data_root())
        except UserError as error:
            fixes |= dict.fromkeys((artist, "emoji"), str(error))
    return {name: _state(why) for name, why in fixes.items()}


@contextlib.contextmanager
def _offline(root: Path) -> Iterator[None]:
    """Refuse downloads, silence what torchvision says of them, and remove the empty folders that it makes for them."""

    def refuse(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("nothing is downloaded")

    before = set(root.glob("*"))
    importlib.import_module("torchvision.datasets")
    no_download, silent = (mock.patch.object(urllib.request, "urlopen", refuse), contextlib.redirect_stdout(sys.stderr))
    with no_download, silent, warnings.catch_warnings(action="ignore"):
        yield
    for new in set(root.glob("*")) - before:
        for folder in sorted((new, *new.rglob("*")), reverse=True):
            with contextlib.suppress(OSError):  # not empty, or a file
                folder.rmdir()
