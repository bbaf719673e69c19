"""Import a user's Python file, and the modules next to it."""

import ast
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from antiphase.errors import UserError, first_line
from antiphase.files import digest

_imported: set[str] = set()  # modules imported from users' folders so far


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Put a folder first on the import path.

    Modules that were imported from such a folder before are imported anew, so that two folders may have modules of
    the same name, and changes in a notebook count.
    """
    for name in _imported:
        sys.modules.pop(name, None)
    _imported.clear()
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _imported.update(
            name for name in set(sys.modules) - before if _beside(folder, name.partition(".")[0])
        )


def import_file(path: Path) -> ModuleType:
    """Import a Python file under its own name, unless another module has that name."""
    name = path.stem if path.stem not in sys.modules else f"python_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up there
    _imported.add(name)
    spec.loader.exec_module(module)
    return module


def source_files(path: Path) -> list[Path]:
    """Return a Python file and the files next to it that it imports, directly or not, sorted; nothing is executed."""
    folder, found, left = path.parent, set[Path](), [path]
    while left:
        one = left.pop()
        if one in found:
            continue
        found.add(one)
        try:
            tree = ast.parse(one.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for name in {name for node in ast.walk(tree) for name in _imports(node)}:
            place = folder.joinpath(*name.split("."))
            left += [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
    return sorted(found)


def source_digest(path: Path) -> str:
    """Return the SHA-256 of a Python file and of the files next to it that it imports."""
    parts = [part for file in source_files(path) for part in (file.name, file.read_bytes())]
    return digest(*parts)


def _beside(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


def _imports(node: ast.AST) -> Iterator[str]:
    """Yield the modules that a statement may import, with the packages that hold them."""
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        names = [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)]
    for name in filter(None, names):
        parts = name.split(".")
        yield from (".".join(parts[: end + 1]) for end in range(len(parts)))


def guarded(what: str, folder: Path, call: Callable[[], Any]) -> Any:
    """Run a user's code.

    Args:
        what: what it is called in messages.
        folder: where the user's code is.
        call: runs it.

    Raises:
        UserError: it raised something; names the place.
    """
    try:
        return call()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SyntaxError):
            place = f" ({Path(error.filename or '').name}, line {error.lineno})"
            raise UserError(f"{what}: SyntaxError: {error.msg}{place}") from error
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
        place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
        raise UserError(f"{what}: raised {type(error).__name__}: {first_line(error)}{place}") from error
