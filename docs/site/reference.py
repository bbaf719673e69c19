"""The reference of Python names: a page for each public package, with what its ``__all__`` lists."""

import importlib
import inspect
from collections.abc import Iterator

PACKAGES = (
    "antiphase",
    "antiphase.attacks",
    "antiphase.attention",
    "antiphase.data",
    "antiphase.evaluation",
    "antiphase.models",
    "antiphase.sensitivity",
    "antiphase.studies",
    "antiphase.training",
)
"""The packages whose names are for users."""

_RESULT = ("antiphase.commands.result.Result", "antiphase.commands.result.open_result")


def python_pages() -> Iterator[tuple[str, str, str]]:
    """Yield (title, path in the site, Markdown) of each page."""
    waiting = list(PACKAGES)
    for package in waiting:  # grows by the packages that their __all__ name
        module = importlib.import_module(package)
        lines = [f"# `{package}`", "", inspect.getdoc(module).partition("\n")[0], ""]  # type: ignore[union-attr]
        names = [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
        parts = sorted(set(module.__all__) - set(names))
        if parts:
            lines += ["Packages: " + ", ".join(f"[`{name}`]({_page(f'{package}.{name}')})" for name in parts) + ".", ""]
        for name in sorted(names, key=str.lower):
            lines += [f"::: {_place(package, name)}", ""]
        if package == "antiphase":
            lines += ["## Results", "", "What the functions above return, and `ap.open(DIR)`, which reads a run.", ""]
            lines += [f"::: {name}\n    options:\n      heading_level: 3\n" for name in _RESULT]
        yield package, f"reference/python/{_page(package)}", "\n".join(lines)
        waiting += [f"{package}.{name}" for name in parts if f"{package}.{name}" not in PACKAGES]


def _place(package: str, name: str) -> str:
    """Return where a name is defined: a package may have a module of the same name."""
    member = getattr(importlib.import_module(package), name)
    if inspect.isclass(member) or inspect.isfunction(member):
        return f"{member.__module__}.{member.__qualname__}"
    return f"{package}.{name}"


def _page(package: str) -> str:
    """Return the name of a package's page."""
    return f"{package.removeprefix('antiphase.')}.md"
