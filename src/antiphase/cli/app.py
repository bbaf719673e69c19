"""The command line: one line for each mistake, exit code 2; a traceback is a defect of ours."""

import errno
import logging
import os
import shlex
import sys
import traceback
from typing import Annotated

import typer
from typer.exceptions import Exit, TyperException

from antiphase.cli.groups import lazy_group
from antiphase.errors import Failures, UserError, shown
from antiphase.heap import keep_freed_memory
from antiphase.processes import rank_and_count
from antiphase.terminal import prepare_streams, say

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

app = typer.Typer(
    name="antiphase",
    help="Measure how fragile differential attention is, and help to build models that are not.",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.info.cls = lazy_group(app)


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


def typed_command() -> str:
    """Return this process's command line, for the record of a run."""
    return shlex.join(["antiphase", *sys.argv[1:]])


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
