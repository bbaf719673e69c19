"""The exception for mistakes of the caller, and other exceptions in one line of a message."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args


class UserError(ValueError):
    """Invalid input, in one line: what was wrong with which value, what was expected and how to fix it.

    The command line prints it and exits with code 2. Any other exception is a bug, and keeps its traceback.
    """


class Unreadable(UserError):
    """A file that is damaged, too large or of another kind."""


def shown(text: object, most: int = 80) -> str:
    """Return the repr of a value for a message, with the middle omitted if it is longer than ``most`` characters."""
    try:
        whole = repr(text)
    except (ValueError, RecursionError):  # an integer of too many digits, or too deeply nested
        whole = f"<{type(text).__name__}>"
    whole = " ".join(whole.split()) if "\n" in whole else whole
    side = (most - 3) // 2
    return whole if len(whole) <= most else f"{whole[:side]} … {whole[-side:]}"


def first_line(error: BaseException) -> str:
    r"""Return the first line of an exception's message, or its type if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def one_line(error: BaseException) -> str:
    r"""Return an exception's whole message in one line, or its type if the message is empty."""
    return " ".join(str(error).split()) or type(error).__name__


def install(extras: str) -> str:
    """Return the command that installs antiphase with some extras; PyPI does not have it."""
    return f"pip install 'antiphase[{extras}] @ git+https://github.com/antiphase/antiphase'"


@contextmanager
def refusing(fault: str, fix: str, *failures: type[Exception]) -> Iterator[None]:
    """Turn failures of a block into a ``UserError``: what is the matter, the failure in one line, how to fix it."""
    try:
        yield
    except UserError:
        raise
    except failures as error:
        raise UserError(f"{fault} ({first_line(error)}){fix}") from None


_BOUNDS = {"greater_than_equal": ("of at least", "ge"), "greater_than": ("above", "gt")}
_BOUNDS |= {"less_than_equal": ("of at most", "le"), "less_than": ("below", "lt")}
_KINDS = {"int": "an integer", "float": "a number", "finite": "a finite number", "bool": "true or false"}
_KINDS |= {"string": "text"} | dict.fromkeys(("model", "dict"), "an object with fields")
_KINDS |= dict.fromkeys(("list", "tuple"), "a list")


def invalid(error: Any, before: str = "", parents: tuple[str, ...] = ()) -> UserError:
    """Return the first mistake of a ``ValidationError`` as one line: the field, its value, what was expected."""
    mistakes = error.errors(include_url=False)
    first = next((one for one in mistakes if one["type"] != "json_invalid"), mistakes[0])
    kind, context = str(first["type"]), first.get("ctx", {})
    if isinstance(context.get("error"), UserError):
        return UserError(f"{before}{context['error']}")
    path = (*parents, *first["loc"])
    path = path[:-1] if path and isinstance(path[-1], int) else path  # the value tells which one of a list
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    field = f"{before}{place.lstrip('.') or 'content'}"
    if kind == "missing":
        return UserError(f"{field}: is missing; expected a value")
    if kind == "extra_forbidden":
        return UserError(f"{field}: no such field; leave it out")
    words, value = str(first["msg"]).removeprefix("Value error, "), f" {shown(first['input'])}"
    if kind in _BOUNDS:
        side, bound = _BOUNDS[kind]
        limit = context[bound]
        number = f"a number {side} {limit:g}" if isinstance(limit, float) else f"an integer {side} {limit}"
        words, value = f"expected {number}", value.replace("'", "")
    elif kind == "literal_error":
        words = f"expected {context['expected']}".replace("'", "")
    elif kind.endswith(("_type", "_parsing", "_from_float", "_number")) and kind.split("_")[0] in _KINDS:
        words = f"expected {_KINDS[kind.split('_')[0]]}"
    elif kind == "json_invalid" or isinstance(first["input"], dict):
        value = ""
    return UserError(f"{field}{value}: {words.replace('Input should be', 'expected')}")


@classmethod
def refuse_truth_value(cls: Any, value: Any, info: Any) -> Any:
    """Refuse true and false, which pydantic takes for 1 and 0, for a field of another type."""
    kind = cls.model_fields[info.field_name].annotation
    several = value if isinstance(value, list | tuple) else [value]
    may = any(one is bool or isinstance(one, str) for one in (kind, *get_args(kind)))  # a choice of words has its line
    if bool in map(type, several) and not may:
        raise ValueError("expected no true or false")
    return value


class NoSuchSplit(UserError):
    """A data set has no split of that name."""


class Failures(UserError):
    """Several failures of a run that goes on without them: a head line, then one line for each distinct reason."""
