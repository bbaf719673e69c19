"""The command line, made from ``commands/``: a mistake is one line and exit code 2; a traceback is our defect."""

import contextlib
import functools
import inspect
import json
import logging
import math
import os
import re
import shlex
import sys
import textwrap
import time
import tomllib
import traceback
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import Exit, TyperException
from typer.main import get_command_from_info, get_group_from_info

from antiphase import files, processes, registry, terminal
from antiphase.commands import COMMANDS, commands_of
from antiphase.errors import Failures, UserError, one_line, shown

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from antiphase.commands.command import Command
    from antiphase.commands.options import Typed

# errors that no other path mends
_NO_PATH = (FileNotFoundError, ConnectionError, TimeoutError, ChildProcessError)
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


class PlainCommand(TyperCommand):
    """A command whose help is plain text: no name is cut, no word is broken, and an example can be copied."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        text, _, examples = inspect.cleandoc(self.help or "").replace("``", "").partition("**Examples**")
        text += "Examples:" + re.sub(r"\n(?=\w)", "\n\n", examples) if examples else ""
        for paragraph in re.split(r"\n{2,}", text):
            example = paragraph.startswith(("antiphase ", "torchrun "))
            if example:  # a line ends before an option only, so that its value is next to it
                paragraph = re.sub(r" (?!-)", "\xa0", paragraph)
            lines = _lines(paragraph, formatter.width - (8 if example else 2))
            separator = " \\\n        " if example else "\n  "
            indent = "    " if example else "  "
            formatter.write(f"\n{indent}{separator.join(lines)}\n".replace("\xa0", " "))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        records = [(parameter.param_type_name, parameter.get_help_record(ctx)) for parameter in self.get_params(ctx)]
        for kind in ("argument", "option"):
            shown = [record for name, record in records if name == kind and record]
            shown = [(re.sub(r" <.*>$", "", name), text) for name, text in shown]
            if not shown:
                continue
            column = min(max(len(name) for name, _ in shown), 28) + 4
            with formatter.section(f"{kind.capitalize()}s"):
                for name, text in shown:
                    head = f"  {name}".ljust(column)
                    first = [] if head.endswith("  ") else [head]
                    body = f"\n{' ' * column}".join(_lines(text, formatter.width - column))
                    formatter.write("\n".join([*first, (" " * column if first else head) + body]) + "\n")


def _lines(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


class HelpGroup(TyperGroup):
    """A group that shows its help where no command is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])


class LazyGroup(HelpGroup):
    """The top group: a command's module is imported when the command is asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _build(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@functools.cache
def _build(name: str) -> Any:
    """Return typer's command, or the group of commands whose names begin with this one."""
    how: dict[str, Any] = {"pretty_exceptions_short": True, "rich_markup_mode": None}
    group = typer.Typer(cls=HelpGroup, help=COMMANDS[name], rich_markup_mode=None)
    commands = commands_of(name)
    for command in commands.values():
        register(group, command)
    if name in commands:
        return get_command_from_info(group.registered_commands[0], **how)
    app.add_typer(group, name=name)
    return get_group_from_info(app.registered_groups.pop(), suggest_commands=True, **how)


_CONFIG: Any = {"metavar": "FILE", "help": "TOML file of these options, by name; the command line overrides it."}
_TABLES: Any = {"metavar": " | ".join(terminal.TABLE_FORMATS)} | {
    "help": "Print all tables of the report in this format to standard output; all else goes to standard error. A "
    "finished run is not measured again."
}
_JSON: Any = {"metavar": "", "help": "Print one JSON value to standard output; all else goes to standard error."}
_SAY: Any = {"metavar": "", "help": "Say more: why a backend was not chosen, and after a mistake where it was found."}


def register(group: typer.Typer, command: "Command") -> None:
    """Add a command to a group; its options are the fields of its model, which gets only what was typed or stored."""
    from antiphase.commands.command import Refusal

    options = command.options
    own_first = dict.fromkeys(key for kind in options.__mro__ for key in inspect.get_annotations(kind))
    offered = options.model_fields.keys() - options.left_out
    fields = {key: options.model_fields[key] for key in own_first if key in offered}

    def read(context: typer.Context, path: Path | None) -> Path | None:
        if path is not None:
            context.default_map = _configured(path, fields)
        return path

    def call(
        *,
        context: typer.Context,
        config: Annotated[Path | None, typer.Option(callback=read, is_eager=True, **_CONFIG)] = None,
        as_json: Annotated[bool, typer.Option("--json", **_JSON)] = False,
        form: Annotated[str | None, typer.Option("--tables", **_TABLES)] = None,
        verbose: Annotated[bool, typer.Option("--verbose", "-v", callback=_log, is_eager=True, **_SAY)] = False,
        **values: Any,
    ) -> None:
        places = {key: getattr(context.get_parameter_source(key), "name", "") for key in values}
        kinds = ("COMMANDLINE", "DEFAULT_MAP")
        typed, stored = ({key: value for key, value in values.items() if places[key] == kind} for kind in kinds)
        chosen = options.from_file(stored, **typed)
        quiet = as_json or (form is not None and bool(terminal.check_format(form)))
        with contextlib.redirect_stdout(sys.stderr) if quiet else contextlib.nullcontext():
            began = time.monotonic()
            with command.place(chosen):
                content = registry.imported(command.run)(chosen, shlex.join(["antiphase", *sys.argv[1:]]))
                answer, tables = command.told(chosen, content, began, form)
        if as_json and tables and isinstance(answer, dict):
            answer["tables"] = tables
        elif tables:
            terminal.say("\n\n".join(tables.values()))
        # under torchrun one process answers
        if as_json and answer is not None and os.environ.get("RANK", "0") == "0":
            terminal.say(json.dumps(_finite(answer), indent=2, allow_nan=False, default=str))
        if isinstance(answer, Refusal):
            raise typer.Exit(1)

    context, *shared, _ = inspect.signature(call).parameters.values()
    shared = [parameter for parameter in shared if parameter.name != "form" or command.has_report or command.tabled]
    parameters = [_parameter(key, field) for key, field in fields.items()]
    parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)
    parameters = [context, *parameters, *shared]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__doc__ = options.__doc__
    group.command(command.name.split()[-1], cls=PlainCommand)(call)


def _log(verbose: bool) -> None:
    if verbose:
        logging.basicConfig(format="antiphase: %(message)s")
        logging.getLogger("antiphase").setLevel(logging.INFO)


app = typer.Typer(
    name="antiphase",
    cls=LazyGroup,
    help="Measure how fragile differential attention is, and help to build models that are not.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes longer to import than all else
    context_settings={"help_option_names": ["-h", "--help"]},
)


@contextlib.contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    """Prepare the process for a command, and end it with one line and exit code 2 after a user's mistake."""
    processes.keep_freed_memory()
    terminal.prepare_streams()
    try:
        processes.rank_and_count()
        yield
        sys.stdout.flush()
    except Failures as error:
        _complain(*str(error).splitlines())
    except UserError as error:
        _complain(one_line(error))
    except TyperException as error:
        context = getattr(error, "ctx", None)
        _complain(error.format_message() + (f"; see {context.command_path} --help" if context else ""))
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except OSError as error:
        if error.errno is None or isinstance(error, _NO_PATH):
            raise
        where = "writing" if error.filename is None else shown(str(error.filename))
        _complain(f"{where}: {error.strerror}; give another path")
    except Exit as error:
        sys.exit(error.exit_code)
    except RuntimeError as error:  # of Path.expanduser
        if "home directory" not in str(error):
            raise
        _complain("no home directory for a ~ or ~NAME; set HOME, give paths without ~, and ANTIPHASE_DATA for the data")


def _complain(*lines: str) -> None:
    if logging.getLogger("antiphase").isEnabledFor(logging.INFO):  # --verbose
        terminal.say(traceback.format_exc(), err=True)
    terminal.say("antiphase: " + "\n  - ".join(lines), err=True)
    sys.exit(2)


def _show_version(show: bool) -> None:
    if show:
        from importlib.metadata import version

        terminal.say(f"antiphase {version('antiphase')}")
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
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _configured(path: Path, fields: "Mapping[str, FieldInfo]") -> dict[str, Any]:
    """Return the values of a TOML file as one would type them."""
    text = files.read_text(path, "expected a TOML file")
    try:
        stored = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise files.unreadable(path, error, "expected a TOML file") from None
    values: dict[str, Any] = {}
    flags = {flag.strip("-"): key for key, field in fields.items() for flag in how_typed(field).flags}
    for name, value in stored.items():
        key, file = flags.get(name, name.replace("-", "_")), f"config {shown(str(path))}"
        if key not in fields or isinstance(value, dict):
            typed = dict.fromkeys(fields) | {key: flag for flag, key in reversed(flags.items())}
            known = ", ".join(flag or key.replace("_", "-") for key, flag in typed.items())
            raise UserError(f"{file}: {shown(name)} is no option; expected some of {known}")
        if key in values:
            raise UserError(f"{file}: {shown(name)} is given twice, in two spellings; keep one")
        joined = isinstance(value, list) and how_typed(fields[key]).text is not None
        if isinstance(value, list) and not joined and not _several(fields[key]):
            raise UserError(f"{file}: {name} is a list; expected one value")
        value = [value] if _several(fields[key]) and not isinstance(value, list) else value
        values[key] = ",".join(map(str, value)) if joined else value
    return values


def _several(field: "FieldInfo") -> bool:
    return how_typed(field).text is None and get_origin(_plain(field.annotation)) in (tuple, dict)


def _parameter(key: str, field: "FieldInfo") -> inspect.Parameter:
    """Return typer's parameter of a field; values reach the model as text, so that its mistakes name the value."""
    typed, kind = how_typed(field), _plain(field.annotation)
    several = _several(field)
    choices = get_args(kind) if get_origin(kind) is Literal else typed.choices or ()
    word, text = typed.metavar or " | ".join(choices), field.description or ""
    if not typed.metavar and len(word) > _LONG:
        listed = all(re.search(rf"\b{re.escape(choice)}\b", text) for choice in choices)
        word, text = "NAME", text if listed else f"{text} One of {', '.join(choices)}."
    if not word:
        word = _WORDS.get(_plain(get_args(kind)[0]) if several else kind, "TEXT")
    about: dict[str, Any] = {"help": text, "metavar": word + _bounds(field)}
    flags = typed.flags or (f"--{key.replace('_', '-')}",)
    info = typer.Argument(**about) if typed.argument else typer.Option(*flags, **about)
    annotation: Any = bool if kind is bool else list[str] if several else str
    if field.is_required():
        return inspect.Parameter(key, _KEYWORD, annotation=Annotated[annotation, info])
    default = field.get_default(call_default_factory=True)
    if default in (None, (), {}):  # typer has no type for an empty sequence
        default, annotation = None, annotation | None
    elif typed.text is not None:
        default = typed.text(default)
    return inspect.Parameter(key, _KEYWORD, annotation=Annotated[annotation, info], default=default)


def how_typed(field: "FieldInfo") -> "Typed":
    """Return how a field is shown: of several markers, the last that says something counts."""
    from antiphase.commands.options import Typed

    inner = [marker for part in get_args(field.annotation) for marker in getattr(part, "__metadata__", ())]
    fields: dict[str, Any] = {}
    for marker in (*inner, *field.metadata):
        if isinstance(marker, Typed):
            fields |= {name: value for name, value in vars(marker).items() if value}
    return Typed(**fields)


def _plain(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_WORDS = {bool: "", int: "N", float: "X", Path: "PATH"}
_LONG = 24  # of a list of choices
_ALL = 2**62  # a bound that leaves nothing out that one would type


def _bounds(field: "FieldInfo") -> str:
    signed = ((sign, getattr(marker, name, _ALL)) for marker in field.metadata for name, sign in _SIGNS.items())
    bounds = [f"{sign}{bound}" for sign, bound in signed if bound < _ALL]
    return f" [{', '.join(bounds)}]" if bounds else ""
