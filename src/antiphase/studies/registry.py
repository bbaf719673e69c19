"""Find studies by name, by paper or by file."""

import difflib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Sequence
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path

from antiphase.errors import UserError
from antiphase.files import write_text
from antiphase.models.schemes.python_code import guarded
from antiphase.studies import own, papers
from antiphase.studies.spec import Study

EVERY = "all"


@lru_cache
def known_studies() -> dict[str, Study]:
    """Return the studies of the package by name: the robustness paper first, in the order of each paper; ours last."""
    found = []
    for package in (papers, own):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            values = vars(importlib.import_module(module.name)).values()
            found += [value for value in values if isinstance(value, Study)]
    found.sort(key=lambda study: (study.paper != "robustness", study.paper, _order(study.label)))
    return {study.name: study for study in found}


def _order(label: str) -> tuple[str, int, str]:
    """Sort "Figure 2(a)" between "Figure 1" and "Figure 10"; tables after figures."""
    kind, _, rest = label.partition(" ")
    digits = "".join(char for char in rest if char.isdigit())
    return kind, int(digits or 0), rest


def find_studies(names: Sequence[str]) -> list[Study]:
    """Return studies by name, by paper (``robustness``, ``diffclip``; ``own`` for ours), by file, or all.

    Raises:
        UserError: A name is unknown, or a file defines no study.
    """
    known = known_studies()
    found: dict[str, Study] = {}
    for name in names:
        if name.endswith(".py"):
            studies = [load_study(Path(name))]
            if studies[0].name in known:
                raise UserError(
                    f"{name}: study name {studies[0].name!r} belongs to a study of the papers; rename it"
                )
        elif name in known:
            studies = [known[name]]
        else:
            studies = [study for study in known.values() if name in (EVERY, study.paper)]
        if not studies:
            near = difflib.get_close_matches(name, known, n=3)
            guess = f"did you mean {', '.join(near)}?" if near else "list them with antiphase study list"
            raise UserError(
                f"study {name!r}: unknown; {guess} (for your own study, give a file ending in .py)"
            )
        for study in studies:
            if found.setdefault(study.name, study) is not study:
                raise UserError(f"{name}: duplicate study name {study.name!r}; rename it in the file")
    return list(found.values())


def load_study(path: Path) -> Study:
    """Return the ``study`` of a Python file; its folder is then on the import path, for the modules next to it.

    Raises:
        UserError: The file does not exist, raises an error, or defines no ``study``.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; create one with antiphase study new NAME")
    spec = importlib.util.spec_from_file_location(f"antiphase_study_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # for good: cells may import more when they run
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    guarded(str(path), path.resolve().parent, partial(spec.loader.exec_module, module))
    study = getattr(module, "study", None)
    if not isinstance(study, Study):
        raise UserError(f"{path}: expected `study = Study(…)`; antiphase study new NAME writes an example")
    return study


def write_study(name: str) -> Path:
    """Write ``NAME.py`` into the current folder and return its path.

    Raises:
        UserError: the file exists.
    """
    path = Path(f"{name}.py")
    if path.exists():
        raise UserError(f"{path}: exists; give another name")
    text = files("antiphase.studies").joinpath("example.py").read_text(encoding="utf-8")
    text = text.replace("NAME.py", f"{name}.py").replace('Study("example"', f'Study("{name}"')
    write_text(path, text)
    return path
