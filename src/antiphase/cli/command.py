"""From a model of options to a command of typer: each field becomes one option or argument."""

import contextlib
import dataclasses
import inspect
import json
import logging
import math
import os
import shlex
import sys
import tomllib
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from antiphase.commands.command import Answer, Refusal
from antiphase.commands.options import Options, Typed
from antiphase.errors import UserError, first_line, shown
from antiphase.reading import read_text
from antiphase.terminal import say

_KEYWORD = inspect.Parameter.KEYWORD_ONLY

Body = Callable[[Any], Answer]
"""What a command does with its options."""


def register(app: typer.Typer, name: str, module: Any) -> None:
    """Register the command of a module of ``commands/``."""
    if (found := getattr(module, "COMMANDS", {}).get(name) or getattr(module, "COMMAND", None)) is not None:

        def body(options: Any) -> Answer:
            return found.answer(options, shlex.join(["antiphase", *sys.argv[1:]]))

        body.__doc__ = found.options.__doc__
        command(app, found.options, name)(body)


def command(app: typer.Typer, options: type[Options], name: str | None = None) -> Callable[[Body], Body]:
    """Register a function of one model of options as a command.

    Only what was typed or configured reaches the model, so that its ``model_fields_set`` tells what the user asked for.
    Every command has ``--config``, ``--json`` and ``--verbose``. With ``--json``, what the body prints goes to standard
    error.

    Args:
        app: where the command is registered.
        options: the model; its fields are the command's options, in their order.
        name: name of the command; by default the function's.
    """

    def register(body: Body) -> Body:
        def call(*, context: typer.Context, config: Any, verbose: bool, as_json: bool, **values: Any) -> None:
            source = {key: context.get_parameter_source(key) for key in values}
            typed, stored = (
                {key: value for key, value in values.items() if getattr(source[key], "name", "") == name}
                for name in ("COMMANDLINE", "DEFAULT_MAP")
            )
            given = options.from_file(stored, **typed)
            with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
                found = body(given)
            # under torchrun one process answers
            if as_json and found is not None and os.environ.get("RANK", "0") == "0":
                say(json.dumps(_finite(found), indent=2, allow_nan=False))
            if isinstance(found, Refusal):
                raise typer.Exit(1)

        fields = {key: field for key, field in options.model_fields.items() if key not in options.left_out}
        parameters = [inspect.Parameter("context", _KEYWORD, annotation=typer.Context)]
        parameters += [_parameter(key, field) for key, field in fields.items()]
        parameters += _shared(fields)
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        call.__doc__, call.__name__ = body.__doc__, body.__name__
        app.command(name or body.__name__.replace("_", "-"))(call)
        return body

    return register


def _finite(value: Any) -> Any:
    """Return a value for JSON, which has no NaN and no infinity: they become null."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shared(fields: Mapping[str, FieldInfo]) -> list[inspect.Parameter]:
    """Return the parameters that every command has."""

    def read(context: typer.Context, path: Path | None) -> Path | None:
        if path is not None:
            context.default_map = _configured(path, fields)
        return path

    config = typer.Option(
        "--config",
        callback=read,
        is_eager=True,
        metavar="FILE",
        help="TOML file with values of these options, under their names; what is typed counts more.",
    )

    def log(verbose: bool) -> None:
        if verbose:
            logging.basicConfig(format="antiphase: %(message)s")
            logging.getLogger("antiphase").setLevel(logging.INFO)

    talkative = typer.Option(
        "--verbose",
        "-v",
        callback=log,
        is_eager=True,
        metavar="",
        help="Say more: why a backend was not chosen, and after a mistake where it was found.",
    )
    as_json = typer.Option(
        "--json", metavar="", help="Print one JSON value to standard output; all else goes to standard error."
    )
    return [
        inspect.Parameter("config", _KEYWORD, annotation=Annotated[Path | None, config], default=None),
        inspect.Parameter("as_json", _KEYWORD, annotation=Annotated[bool, as_json], default=False),
        inspect.Parameter("verbose", _KEYWORD, annotation=Annotated[bool, talkative], default=False),
    ]


def _configured(path: Path, fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """Return the values of a TOML file as one would type them.

    Raises:
        UserError: it cannot be read, or has something that is no option.
    """
    try:
        read = tomllib.loads(read_text(path, "expected a TOML file"))
    except (ValueError, RecursionError) as error:
        known = isinstance(error, UserError)
        why = error if known else f"{path}: cannot be read ({first_line(error)}); expected a TOML file"
        raise UserError(f"config {why}") from None
    found: dict[str, Any] = {}
    for name, value in read.items():
        key = name.replace("-", "_")
        if key not in fields or isinstance(value, dict):
            known = ", ".join(each.replace("_", "-") for each in fields)
            raise UserError(
                f"config {shown(str(path))}: {shown(name)} is no option; expected some of {known}"
            )
        joined = isinstance(value, list) and _shown(fields[key]).text is not None
        found[key] = ",".join(map(str, value)) if joined else value
    return found


def _parameter(key: str, field: FieldInfo) -> inspect.Parameter:
    """Return the parameter from which typer makes the option or argument of a field."""
    shown = _shown(field)
    kind, word = _kind(field.annotation, shown)
    extra: dict[str, Any] = {"help": field.description, "metavar": (shown.metavar or word) + _range(field)}
    if shown.check is not None:
        extra["parser"] = _parser(shown.check)
    if shown.argument:
        info = typer.Argument(**extra)
    else:
        info = typer.Option(*(shown.flags or (f"--{key.replace('_', '-')}",)), **extra)
    default = inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
    if shown.text is not None and default not in (None, inspect.Parameter.empty):
        default = shown.text(default) or None
    return inspect.Parameter(
        key, _KEYWORD, annotation=Annotated[kind, info], default=default or _empty(default)
    )


def _empty(default: Any) -> Any:
    """Return None for an empty sequence, for which typer has no type, and any other value as it is."""
    return None if default in ((), [], {}) else default


def _shown(field: FieldInfo) -> Typed:
    """Return how a field is shown: of several markers, the last that says something counts."""
    found: dict[str, Any] = {}
    inner = [each for part in get_args(field.annotation) for each in getattr(part, "__metadata__", ())]
    for marker in (*inner, *field.metadata):
        if isinstance(marker, Typed):
            found |= {
                each.name: getattr(marker, each.name)
                for each in dataclasses.fields(marker)
                if getattr(marker, each.name) != each.default
            }
    return Typed(**found)


def _kind(annotation: Any, shown: Typed) -> tuple[Any, str]:
    """Return the type that typer is to read, text where the model reads it, and the word for a value in the help."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    kind, *_ = (part for part in kinds if part is not type(None))
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    word = " | ".join(get_args(kind) if get_origin(kind) is Literal else shown.choices or ())
    if get_origin(kind) is dict:
        kind = list[str]
    if get_origin(kind) is tuple:
        part = get_args(kind)[0]
        part = get_args(part)[0] if get_origin(part) is Annotated else part
        kind = str if shown.text is not None else list[part]
    word = word or _WORDS.get(kind, "TEXT")
    if get_origin(kind) is Literal or kind in (int, float):  # the model's mistakes name the value
        kind = str
    return (kind | None if type(None) in kinds else kind), word


_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_WORDS = {bool: "", int: "N", float: "X", Path: "PATH", list[Path]: "PATH"}


def _range(field: FieldInfo) -> str:
    """Return the range of a number for its help, such as ``" [x>=1]"``."""
    found = {
        name: bound
        for each in field.metadata
        for name in _SIGNS
        if (bound := getattr(each, name, None)) is not None
    }
    bounds = {
        name: f"{bound:g}" if isinstance(bound, float) else f"{bound}"
        for name, bound in found.items()
        if bound < 2**62
    }
    low = next((name for name in ("ge", "gt") if name in bounds), "")
    high = next((name for name in ("le", "lt") if name in bounds), "")
    if low and high:
        return f" [{bounds[low]}{_SIGNS[low].replace('>', '<')}x{_SIGNS[high]}{bounds[high]}]"
    return f" [x{_SIGNS[low or high]}{bounds[low or high]}]" if low or high else ""


def _parser(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a check whose mistakes typer reports with the option's name."""

    def read(text: str | Path) -> Any:
        try:
            return check(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return read
