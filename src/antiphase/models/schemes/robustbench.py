"""Models of RobustBench, loaded by its own package, and the numbers that its leaderboard prints of them.

Source: F. Croce et al., *RobustBench: a standardized adversarial robustness benchmark*, NeurIPS 2021.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

from torch import nn

from antiphase.data import folders, hub
from antiphase.data.decoding import Square
from antiphase.errors import UserError, shown
from antiphase.models.preprocessing import Preprocessing, checked
from antiphase.models.schemes.scheme import Wanted, check_known, downloading, probe, scheme

_DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}  # headings of its README
_NORMS = {"Linf": "linf", "L2": "l2"}
_SQUARES = (Square(224, "bicubic", 256), Square(224, "bilinear", 256), Square(224, "bilinear", squash=True))
_ROW = re.compile(r"<sup>\*\*(.+?)\*\*</sup>.*?<sub>([\d.]+)%</sub>.*?<sub>([\d.]+)%</sub>")
_INSTALL = "install it: pip install --no-deps robustbench (it asks for an older timm), and what it imports"


@dataclass(frozen=True)
class Entry:
    """A model's row in the leaderboard: its data set, norm and ε, and accuracies in [0, 1]."""

    name: str
    data: str
    norm: str  # "linf" or "l2"
    eps: float
    clean: float
    robust: float


def parts_of(name: str) -> tuple[str, str, str]:
    """Return data set, threat model and name of ``[DATA/THREAT/]NAME``; CIFAR-10 and Linf unless given."""
    data, threat, model = parts if len(parts := name.split("/")) == 3 else ("cifar10", "Linf", name)
    if data not in _DATA or threat not in _NORMS or "/" in model:
        expected = f"NAME or DATA/THREAT/NAME with {', '.join(_DATA)} and {', '.join(_NORMS)}"
        raise UserError(f"robustbench:{name}: expected robustbench:{expected}")
    return data, threat, model


def leaderboard(name: str) -> Entry:
    """Return the row of ``[DATA/THREAT/]NAME`` in the tables that RobustBench's package describes itself with."""
    data, threat, model = parts_of(name)
    try:
        text = metadata.distribution("robustbench").read_text("METADATA") or ""
    except metadata.PackageNotFoundError:
        raise UserError(f"robustbench:{name}: robustbench is not installed; {_INSTALL}") from None
    pattern = rf"### {_DATA[data]}\n.*?#### {threat}, eps=(?P<eps>[\d./]+)(?P<table>.*?)\n###"
    section = re.search(pattern, text, re.DOTALL)
    matches = [] if section is None else _ROW.findall(section["table"])
    rows = {one: (float(clean) / 100, float(robust) / 100) for one, clean, robust in matches}
    check_known(model, list(rows), "RobustBench's leaderboard has no model", "its README has the table")
    assert section is not None
    above, _, below = section["eps"].partition("/")
    return Entry(model, data, _NORMS[threat], float(above) / float(below or 1), *rows[model])


@scheme("robustbench:NAME", "a model of RobustBench, with its package installed; NAME or DATA/THREAT/NAME")
def _robustbench(request: Wanted) -> nn.Module:
    data, threat, name = parts_of(request.name)
    try:
        utils: Any = import_module("robustbench.utils")
        get_preprocessing: Any = import_module("robustbench.data").get_preprocessing
        kinds: Any = import_module("robustbench.model_zoo.enums")
    except ImportError as error:
        raise UserError(f"{request.spec}: robustbench cannot be imported ({error}); {_INSTALL}") from None
    kind = kinds.BenchmarkDataset(data), kinds.ThreatModel(threat)
    fix = f"download them on a machine with network access into {folders.data_root() / 'robustbench'}"
    try:
        with downloading(f"{request.spec}: the weights are not available", fix, (*hub.OFFLINE, ValueError)):
            model = utils.load_model(name, folders.data_root() / "robustbench", *kind).eval()
    except KeyError:
        raise UserError(f"{request.spec}: RobustBench has no such model for {data} and {threat}") from None
    side = 224 if data == "imagenet" else 32
    _, count, _ = probe(model, request.spec, (3, side, side))
    for square in _SQUARES if data == "imagenet" else (Square(32),):
        with suppress(UserError):
            used = Preprocessing(square, (0.0,) * 3, (1.0,) * 3)
            if data == "imagenet":
                checked(request.spec, used, get_preprocessing(*kind, name, None))
            return request.loaded(model, name, count, used)
    raise UserError(f"{request.spec}: its preprocessing of pictures is none that can be repeated here ({shown(name)})")
