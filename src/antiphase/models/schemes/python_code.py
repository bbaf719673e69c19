"""Models from a user's own code, ``python:model.py:build?depth=4,weights=run/best.pt``, and how such code is run."""

import ast
import importlib
import importlib.util
import inspect
import operator
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from antiphase.data import decoding, in_memory
from antiphase.errors import UserError, first_line, shown
from antiphase.files import digest
from antiphase.models.checkpoints import check_finite, file_and_set, files_of, load_into, read_state
from antiphase.models.schemes.scheme import Wanted, drawn_from, probe, scheme
from antiphase.models.zeroshot import is_dual_encoder
from antiphase.modules import device_of, differentiable, to_evaluation

_WEIGHTS = "weights"  # the setting that names a file of weights
_WEIGHTS_LAST = re.compile(rf"(?:^|,)\s*{_WEIGHTS}\s*=\s*(.+)$")
_imported: set[str] = set()  # modules imported from users' folders so far


def split_spec(name: str) -> tuple[str, str, dict[str, Any]]:
    """Return file or module, callable and settings of ``FILE_OR_MODULE:CALLABLE?name=value,…``.

    Values are Python's literals; anything else is a string, and so is the file of ``weights``, with commas if last.
    """
    target, _, rest = name.partition("?")
    where, _, function = target.rpartition(":")
    spec = f"model {shown(f'python:{name}')}"
    if not where or not function:
        form = "python:FILE_OR_MODULE:CALLABLE, such as python:model.py:build?depth=4,weights=best.pt"
        raise UserError(f"{spec}: expected {form}")
    settings: dict[str, Any] = {}
    if (last := _WEIGHTS_LAST.search(rest)) and os.path.exists(file_and_set(last[1])[0]):
        rest, settings[_WEIGHTS] = rest[: last.start()], last[1]
    for part in filter(None, rest.split(",")):
        key, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign or not key.isidentifier():
            raise UserError(f"{spec}: {part!r}: expected name=value, such as depth=4")
        if key in settings:
            raise UserError(f"{spec}: {key} is given twice; give each setting once")
        settings[key] = value if key == _WEIGHTS else _literal(value)
    return where, function, settings


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def code_content(name: str) -> str:
    """Return a digest of the code and weights that ``python:NAME`` names; nothing is executed."""
    where, _, settings = split_spec(name)
    with importing_from(Path.cwd()):
        file = _file_of(where)
    parts: list[bytes | str] = [source_digest(file)] if file else []
    if weights := settings.get(_WEIGHTS):
        path, which = file_and_set(weights)
        parts += [shard.read_bytes() for shard in files_of(path) if shard.is_file()] + [which] * bool(which)
    return digest(*parts)[:16] if parts else ""


@scheme("python:FILE:CALLABLE", "your own model: what a function of a file or module returns; the file is executed")
def _python(request: Wanted) -> nn.Module:
    spec = request.spec
    where, function, settings = split_spec(request.name)
    is_file = where.endswith(".py")
    folder = Path(where).expanduser().resolve().parent if is_file else Path.cwd()
    with importing_from(folder):
        if (file := _file_of(where)) is None:
            raise UserError(f"{spec}: no such file or module {shown(where)}")
        load = partial(_import_file, file) if is_file else partial(importlib.import_module, where)
        module = guarded(spec, folder, load)
        # an untrained model is drawn from the seed, so that the same command finds its stored rows
        with drawn_from(request.seed):
            model, weights = _built(spec, folder, module, function, settings)
        if weights is not None and not request.random_weights:
            load_into(model, read_state(weights, model.state_dict()), weights)
        device_of(model)  # refuses weights without values
        check_finite(model.state_dict(), spec)
        if request.as_built:
            return model
        model: Any = to_evaluation(differentiable(model))
        name, code = request.name.rpartition(":")[2], source_digest(file)
        if is_dual_encoder(model):
            if not isinstance(square := getattr(model, "square", None), decoding.Square):
                example = "antiphase.data.decoding.Square(224)"
                raise UserError(f"{spec}: a dual encoder needs an attribute square, such as {example}")
            return request.loaded(model, name, image_shape=(3, square.size, square.size), code=code)
        stated = getattr(model, "image_shape", None)
        try:
            channels, height, width = map(int, (0, 0, 0) if stated is None else stated)
        except (TypeError, ValueError, OverflowError):
            raise UserError(f"{spec}: image_shape {stated!r}: expected (channels, height, width)") from None
        shape, count, any_size = probe(model, spec, None if stated is None else (channels, height, width))
        names = stated_class_names(model, count, spec)
        return request.loaded(model, name, count, image_shape=shape, class_names=names, any_size=any_size, code=code)


def stated_class_names(model: Any, count: int, spec: str) -> tuple[str, ...] | None:
    """Return the names that a user's model has for its outputs, as an attribute ``class_names``; None without one."""
    if (stated := getattr(model, "class_names", None)) is None:
        return None
    count = max(count, 2)  # a single logit tells two classes
    if (names := in_memory.ordered_names(stated)) is None or len(names) != count:
        got = f"{len(names)} names" if names else shown(stated)
        raise UserError(f"{spec}: class_names: got {got}; expected {count} names, in the order of the outputs")
    return names


def _file_of(where: str) -> Path | None:
    if where.endswith(".py"):
        path = Path(where).expanduser().resolve()
        return path if path.is_file() else None
    try:
        spec = importlib.util.find_spec(where)
    except (ImportError, AttributeError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None


def _built(spec: str, folder: Path, module: ModuleType, path: str, settings: dict[str, Any]) -> tuple[nn.Module, Any]:
    try:
        build = operator.attrgetter(path)(module)
    except AttributeError:
        raise UserError(f"{spec}: no {path!r} in {module.__name__}; expected a function's name") from None
    if isinstance(build, nn.Module):
        return build, settings.get(_WEIGHTS)
    if not callable(build):
        raise UserError(f"{spec}: {path} is a {type(build).__name__}; expected a function of a model")
    taken: Collection[str] = ()
    with suppress(TypeError, ValueError):
        taken = inspect.signature(build).parameters
    weights = None if _WEIGHTS in taken else settings.pop(_WEIGHTS, None)
    if _WEIGHTS in settings:
        settings[_WEIGHTS] = _literal(settings[_WEIGHTS])
    model = guarded(spec, folder, lambda: build(**settings))
    if not isinstance(model, nn.Module):
        raise UserError(f"{spec}: returned {type(model).__name__}; expected a torch.nn.Module")
    return model, weights


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Put a folder first on the import path; modules that were imported from such a folder before are imported anew."""
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
        for name in set(sys.modules) - before:
            top = folder / name.partition(".")[0]
            if top.with_name(f"{top.name}.py").is_file() or top.is_dir():
                _imported.add(name)


def _import_file(path: Path) -> ModuleType:
    name = path.stem if path.stem not in sys.modules else f"python_{path.stem}"
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up there
    _imported.add(name)
    spec.loader.exec_module(module)
    return module


def source_digest(path: Path) -> str:
    """Return the SHA-256 of a Python file and the files next to it that it imports, directly or not; nothing is run."""
    sources, left = set[Path](), [path]
    while left:
        if (file := left.pop()) in sources:
            continue
        sources.add(file)
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for name in {name for node in ast.walk(tree) for name in _imports(node)}:
            place = path.parent.joinpath(*name.split("."))
            left += [source for source in (place.with_suffix(".py"), place / "__init__.py") if source.is_file()]
    return digest(*(part for file in sorted(sources) for part in (file.name, file.read_bytes())))


def _imports(node: ast.AST) -> Iterator[str]:
    modules: list[str] = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        modules = [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)]
    for name in filter(None, modules):
        yield from accumulate(name.split("."), "{}.{}".format)


def guarded(source: str, folder: Path, call: Callable[[], Any]) -> Any:
    """Run a user's code in a folder; what it raises becomes a ``UserError`` in one line with ``source`` and place."""
    try:
        return call()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SyntaxError):
            place = f" ({Path(error.filename or '').name}, line {error.lineno})"
            raise UserError(f"{source}: SyntaxError: {error.msg}{place}") from error
        frames = traceback.extract_tb(error.__traceback__)
        user_frames = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
        place = f" ({Path(user_frames[-1].filename).name}, line {user_frames[-1].lineno})" if user_frames else ""
        raise UserError(f"{source}: raised {type(error).__name__}: {first_line(error)}{place}") from error
