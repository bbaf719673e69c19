"""What every model of options shares: validation whose errors are one line, and how the command line shows a field."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, ValidationInfo, field_validator

from antiphase.errors import UserError, invalid, shown


@dataclass(frozen=True)
class Typed:
    """How the command line shows a field where its type and name do not say it.

    Attributes:
        argument: whether it is given by position.
        flags: names of the option in place of ``--field-name``.
        metavar: word for the value in the help text.
        text: turns a default into the text that one would type; the field's validator reads such text.
        choices: the valid values of a field of strings that has no ``Literal`` type.
    """

    argument: bool = False
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    text: Callable[[Any], str] | None = None
    choices: Collection[str] | None = None


_MOST = 10**15  # of an integer whose field has no bound of its own: longer numbers overflow
_STORED: ContextVar[frozenset[str]] = ContextVar("stored", default=frozenset())  # names of fields from a file


class Options(BaseModel):
    """The options of a command: its command line, its Python function and its stored record read this model.

    A field's docstring is its help text, its bounds are checked in all three.

    Raises:
        UserError: an unknown option, a missing one, or a value that is not valid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    left_out: ClassVar[tuple[str, ...]] = ()  # inherited fields that the command line does not offer

    @classmethod
    def from_file(cls, stored: Mapping[str, Any], /, **values: Any) -> Self:
        """Return options of which some were read from a file, which may hold some that have no use here."""
        token = _STORED.set(frozenset(stored) - frozenset(values))
        try:
            return cls(**{**stored, **values})
        finally:
            _STORED.reset(token)

    def typed(self, name: str) -> bool:
        """Whether the caller gave a field, and no file did."""
        return name in self.model_fields_set - self._stored

    _stored: frozenset[str] = PrivateAttr(default_factory=_STORED.get)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            mistake = error.errors(include_url=False)[0]
            if mistake["type"] != "extra_forbidden":
                raise invalid(error) from None
            known = ", ".join(type(self).model_fields)
            raise UserError(f"option {mistake['loc'][0]!r}: expected one of {known}") from None

    @field_validator("*")
    @classmethod
    def _check_choice(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:  # an optional field that was not given
            return value
        markers = cls.model_fields[info.field_name or ""].metadata
        if isinstance(value, int) and value > _MOST and not any(hasattr(marker, "le") for marker in markers):
            raise UserError(f"{info.field_name} {shown(value)}: expected an integer of at most {_MOST}")
        for marker in markers:
            if isinstance(marker, Typed) and marker.choices is not None and value not in marker.choices:
                raise UserError(
                    f"{info.field_name} {shown(value)}: expected one of {', '.join(marker.choices)}"
                )
        return value

    def record(self) -> dict[str, Any]:
        """Return the fields for JSON; a model made from them equals this one."""
        return self.model_dump(mode="json")


_NUMBER = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?", re.IGNORECASE
)  # e999999999 takes minutes
_MOST_PARTS = 256  # of a path: pathlib makes them one within the other
_SETTING = re.compile(r"\w+\s*=")


def parse_eps(text: str, name: str = "eps") -> tuple[float, ...]:
    """Return the numbers of a comma-separated list, which are finite; ``1/255`` is a number.

    >>> parse_eps("0.5/255, 0.25")
    (0.00196078431372549, 0.25)
    """
    return tuple(_number(part, name) for part in text.split(","))


def _number(part: str, name: str = "eps") -> float:
    above, slash, below = (word.strip() for word in part.partition("/"))
    try:
        if all(map(_NUMBER.fullmatch, [above, below] if slash else [above])):
            return float(Fraction(above) / Fraction(below if slash else 1))
    except (ValueError, ZeroDivisionError, OverflowError):
        pass
    raise UserError(f"{name} {shown(part.strip())}: expected a finite number or a fraction such as 1/255")


def read_eps(value: Any, info: ValidationInfo) -> Any:
    """Read numbers from text, alone or in a sequence; leave numbers as they are."""
    if isinstance(value, str):
        return parse_eps(value, info.field_name or "eps")
    if isinstance(value, int | float):
        return (value,)
    if not isinstance(value, Iterable):
        return value
    name = info.field_name or "eps"
    return tuple(_number(part, name) if isinstance(part, str) else part for part in value)


def each_once(numbers: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
    """Refuse a number that is given twice."""
    for at, number in enumerate(numbers):
        if number in numbers[:at]:
            raise UserError(f"{info.field_name} {eps_text(number)}: given twice; give each number once")
    return numbers


def read_one_eps(value: Any, info: ValidationInfo) -> Any:
    """Read one number from text, which is no list; leave a number as it is."""
    if not isinstance(value, str):
        return value
    numbers = parse_eps(value, info.field_name or "eps")
    if len(numbers) != 1:
        raise ValueError("expected one number, such as 8/255")
    return numbers[0]


def eps_text(value: float | Sequence[float]) -> str:
    """Return numbers as one would type them.

    >>> eps_text((0.5 / 255, 8 / 255, 0.3))
    '0.5/255,8/255,0.3'
    """
    if not isinstance(value, int | float):
        return ",".join(map(eps_text, value))
    text = f"{value * 255:g}/255"
    return text if len(text) < 8 and _number(text) == value else repr(value)


def read_words(value: Any) -> Any:
    """Split a comma-separated list; leave other sequences as they are, and None as no words.

    >>> read_words("probe, few-shot"), read_words(None)
    (('probe', 'few-shot'), ())
    """
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return () if value is None else value


def read_models(value: Any) -> Any:
    """Split a comma-separated list of models; a comma before ``name=`` belongs to the settings after a question mark.

    >>> read_models("python:net.py:build?depth=4,width=8, timm:resnet18")
    ('python:net.py:build?depth=4,width=8', 'timm:resnet18')
    """
    if not isinstance(found := read_words(value), Sequence):
        return found
    words: list[str] = []
    for word in found:
        if isinstance(value, str) and words and "?" in words[-1] and _SETTING.match(word):
            words[-1] += f",{word}"
        else:
            words.append(word)
    return tuple(words)


def as_tuple(value: Any) -> Any:
    """Return one text or path as a tuple of it, and anything else as it is."""
    return (value,) if isinstance(value, str | Path) else value


def at_least_one(words: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse an empty list."""
    if not words:
        raise ValueError("expected at least one")
    return words


def directory(value: str | Path) -> Path:
    """Return the path of a directory, whether it exists or not; refuse what is no path, or a file."""
    if not isinstance(value, str | Path):
        raise ValueError("expected the path of a directory")
    if not str(value).strip() or "\0" in str(value):
        raise ValueError(f"{str(value)!r} is no path; expected a directory")
    if os.path.isfile(value):  # never raises, unlike Path.is_file
        raise ValueError(f"{str(value)!r} is a file; expected a directory")
    if (parts := len(Path(value).parts)) > _MOST_PARTS:
        raise ValueError(f"has {parts:,} parts; expected at most {_MOST_PARTS}")
    return Path(in_unicode(str(value)))


def in_unicode(text: str) -> str:
    """Refuse text with bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{shown(text)} is not UTF-8; expected text in UTF-8") from None
    return text


def read_settings(value: Any) -> Any:
    """Read ``NAME=VALUE`` texts as a dictionary; values stay text for whoever knows their types.

    >>> read_settings(["momentum=0.9"]), read_settings({"momentum": 0.9})
    ({'momentum': '0.9'}, {'momentum': 0.9})
    """
    if isinstance(value, str):
        value = (value,)
    if value is None or isinstance(value, Mapping):
        return dict(value or {})
    if not isinstance(value, Sequence):
        return value
    settings: dict[str, Any] = {}
    for text in value:
        name, equals, setting = str(text).partition("=")
        if not equals or not name:
            raise UserError(f"set {shown(str(text))}: expected NAME=VALUE, such as momentum=0.9")
        if name in settings:
            raise UserError(f"set {shown(name)}: given twice; give each setting once")
        settings[name] = setting
    return settings


def given(**settings: Any) -> dict[str, Any]:
    """Return the settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}
