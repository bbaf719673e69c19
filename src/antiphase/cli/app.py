"""The command line, made from ``commands/``: a mistake is one line and exit code 2; a traceback is our defect."""

import contextlib
import dataclasses
import errno
import importlib
import inspect
import json
import logging
import math
import os
import shlex
import sys
import tomllib
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperGroup
from typer.exceptions import Exit, TyperException
from typer.main import get_command_from_info, get_group_from_info

from antiphase.commands import COMMANDS
from antiphase.errors import Failures, UserError, first_line, shown
from antiphase.heap import keep_freed_memory
from antiphase.processes import rank_and_count
from antiphase.reading import read_text
from antiphase.terminal import prepare_streams, say

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from antiphase.commands.command import Command
    from antiphase.commands.options import Typed

# what is wrong with a path that somebody gave
_UNUSABLE = {
    errno.EEXIST,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EBUSY,
}

_INTERRUPTED = 130
_LONGEST_WORD = 500  # a longer name or path is shown without its middle


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


class HelpGroup(TyperGroup):
    """A group that shows its help where no command is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])


class _Commands(Mapping[str, Any]):
    """The commands by name, each built when it is asked for."""

    def __init__(self) -> None:
        self.built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.built:
            self.built[name] = _build(name)
        return self.built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class LazyGroup(HelpGroup):
    """The top group: a command's module is imported when the command is asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(TyperGroup, self).format_help(
            ctx, formatter
        )  # plain: rich takes longer to import than all else

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _build(name: str) -> Any:
    """Return typer's command, or the group of commands whose names begin with this one."""
    module, line = COMMANDS[name]
    commands = importlib.import_module(module)
    how: dict[str, Any] = {"pretty_exceptions_short": True, "rich_markup_mode": "markdown"}
    among = getattr(commands, "COMMANDS", {})
    single = among.get(name) or getattr(commands, "COMMAND", None)
    group = typer.Typer(cls=HelpGroup, help=line)
    if single is not None:
        register(group, single)
        return get_command_from_info(group.registered_commands[0], **how)
    for command in among.values():
        register(group, command)
    app.add_typer(group, name=name)
    return get_group_from_info(app.registered_groups.pop(), suggest_commands=True, **how)


def register(group: typer.Typer, command: "Command") -> None:
    """Add a command to a group; its options are the fields of its model.

    Only what was typed or configured reaches the model, so that its ``model_fields_set`` tells what the user asked for.
    Every command has ``--config``, ``--json`` and ``--verbose``. With ``--json``, what the command prints goes to
    standard error.
    """
    from antiphase.commands.command import Refusal

    options = command.options

    def call(*, context: typer.Context, config: Any, verbose: bool, as_json: bool, **values: Any) -> None:
        source = {key: context.get_parameter_source(key) for key in values}
        typed, stored = (
            {key: value for key, value in values.items() if getattr(source[key], "name", "") == place}
            for place in ("COMMANDLINE", "DEFAULT_MAP")
        )
        chosen = options.from_file(stored, **typed)
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            answer = command.answer(chosen, shlex.join(["antiphase", *sys.argv[1:]]))
        # under torchrun one process answers
        if as_json and answer is not None and os.environ.get("RANK", "0") == "0":
            say(json.dumps(_finite(answer), indent=2, allow_nan=False))
        if isinstance(answer, Refusal):
            raise typer.Exit(1)

    fields = {key: field for key, field in options.model_fields.items() if key not in options.left_out}
    parameters = [inspect.Parameter("context", _KEYWORD, annotation=typer.Context)]
    parameters += [_parameter(key, field) for key, field in fields.items()]
    parameters += _shared(fields)
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    call.__doc__ = options.__doc__
    group.command(command.name.split()[-1])(call)


app = typer.Typer(
    name="antiphase",
    cls=LazyGroup,
    help="Measure how fragile differential attention is, and help to build models that are not.",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run() -> None:
    """Run the command line."""
    keep_freed_memory()
    prepare_streams()
    try:
        rank_and_count()
        code = app(prog_name="antiphase", standalone_mode=False)
        if code == _INTERRUPTED:  # typer's answer to an interrupt
            raise KeyboardInterrupt
        sys.stdout.flush()
    except Failures as error:
        _complain(*str(error).splitlines())
    except UserError as error:
        _complain(str(error))
    except TyperException as error:
        _complain(_usage(error))
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except OSError as error:
        if error.errno not in _UNUSABLE:
            raise
        where = "writing" if error.filename is None else shown(str(error.filename))
        _complain(f"{where}: {error.strerror}; give another path")
    except Exit as error:
        sys.exit(error.exit_code)
    except RuntimeError as error:  # of Path.expanduser
        if "home directory" not in str(error):
            raise
        _complain(
            "the home directory is not known; set HOME, give paths without ~, and ANTIPHASE_DATA for the data"
        )
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _usage(error: TyperException) -> str:
    """Say what is wrong with the words of a command, such as an argument that was named like an option."""
    name, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if not name or context is None:
        return error.format_message()
    command = context.command_path
    for each in context.command.params:
        word = each.metavar if each.metavar not in (None, "TEXT", "PATH") else (each.name or "").upper()
        names = {each.name, word.strip("{},…[]").lower()}
        given = name.strip("-").rstrip("s")
        if each.param_type_name == "argument" and given in {one.rstrip("s") for one in names if one}:
            return f"{name}: no such option; give its value by itself, as in {command} {word}"
    return f"{error.format_message()}; see {command} --help"


def _complain(*lines: str) -> None:
    if logging.getLogger("antiphase").isEnabledFor(logging.INFO):  # --verbose
        say(traceback.format_exc(), err=True)
    for before, line in zip(("antiphase:", *("  -" for _ in lines)), lines, strict=False):
        words = (word if len(word) <= _LONGEST_WORD else f"{word[:50]}…{word[-50:]}" for word in line.split())
        say(before, *words, err=True)
    sys.exit(2)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(f"antiphase {version('antiphase')}")
        raise Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _finite(value: Any) -> Any:
    """Return a value for JSON, which has no NaN and no infinity: they become null."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shared(fields: "Mapping[str, FieldInfo]") -> list[inspect.Parameter]:
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


def _configured(path: Path, fields: "Mapping[str, FieldInfo]") -> dict[str, Any]:
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


def _parameter(key: str, field: "FieldInfo") -> inspect.Parameter:
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


def _shown(field: "FieldInfo") -> "Typed":
    """Return how a field is shown: of several markers, the last that says something counts."""
    from antiphase.commands.options import Typed

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


def _kind(annotation: Any, shown: "Typed") -> tuple[Any, str]:
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


def _range(field: "FieldInfo") -> str:
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
