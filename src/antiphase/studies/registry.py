"""Studies by name: those of the papers that come with the package, and files of a user's own."""

import difflib
import importlib
import importlib.util
import pkgutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from antiphase.errors import UserError
from antiphase.studies import papers
from antiphase.studies.spec import Study

EVERY = "all"


@lru_cache
def known_studies() -> dict[str, Study]:
    """Return the package's studies by name, those of the robustness paper first, in the papers' order."""
    found = []
    for module in pkgutil.walk_packages(papers.__path__, f"{papers.__name__}."):
        study = getattr(importlib.import_module(module.name), "study", None)
        if isinstance(study, Study):
            found.append(study)
    found.sort(key=lambda study: (study.paper != "robustness", study.paper, _order(study.label)))
    return {study.name: study for study in found}


def _order(label: str) -> tuple[str, int, str]:
    """Sort "Figure 2(a)" between "Figure 1" and "Figure 10"; tables after figures."""
    kind, _, rest = label.partition(" ")
    digits = "".join(char for char in rest if char.isdigit())
    return kind, int(digits or 0), rest


def find_studies(names: Sequence[str]) -> list[Study]:
    """Return studies by name, by paper (``robustness``, ``diffclip``), by file, or all.

    Raises:
        UserError: for a name that is none of them, or a file that is no study.
    """
    known = known_studies()
    found: dict[str, Study] = {}
    for name in names:
        if name.endswith(".py"):
            studies = [load_study(Path(name))]
            if studies[0].name in known:
                raise UserError(
                    f"{name}: its study is called {studies[0].name!r}, as one of the papers' is; rename it"
                )
        elif name in known:
            studies = [known[name]]
        else:
            studies = [study for study in known.values() if name in (EVERY, study.paper)]
        if not studies:
            near = difflib.get_close_matches(name, known, n=3)
            guess = f"did you mean {', '.join(near)}?" if near else "antiphase study list shows them"
            raise UserError(f"study {name!r}: there is none; {guess} (a file of your own ends in .py)")
        for study in studies:
            if found.setdefault(study.name, study) is not study:
                raise UserError(
                    f"{name}: its study is called {study.name!r}, as another one is; rename it in the file"
                )
    return list(found.values())


def load_study(path: Path) -> Study:
    """Return the ``study`` of a Python file.

    Raises:
        UserError: there is no such file, or it defines no ``study``.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; antiphase study new NAME writes one")
    spec = importlib.util.spec_from_file_location(f"antiphase_study_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    study = getattr(module, "study", None)
    if not isinstance(study, Study):
        raise UserError(f"{path}: defines no `study = Study(…)`; antiphase study new NAME shows how")
    return study
