"""What every model of options shares: validation whose errors are one line, and how the command line shows a field."""

from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
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
        check: turns text into the value, and raises ValueError if it cannot.
        choices: the valid values of a field of strings that has no ``Literal`` type.
    """

    argument: bool = False
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    text: Callable[[Any], str] | None = None
    check: Callable[[Any], Any] | None = None
    choices: Collection[str] | None = None


_MOST = 10**15  # of an integer whose field has no bound of its own: longer numbers overflow
_STORED: ContextVar[frozenset[str]] = ContextVar("stored", default=frozenset())  # names of fields from a file


class Options(BaseModel):
    """The options of a command: its command line, its Python function and its stored record read this model.

    A field's description is its help text, its bounds are checked in all three.

    Raises:
        UserError: an unknown option, a missing one, or a value that is not valid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
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
            raise _first_mistake(error, type(self)) from None

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


def _first_mistake(error: ValidationError, options: type[Options]) -> UserError:
    found = error.errors(include_url=False)[0]
    if found["type"] == "extra_forbidden":
        return UserError(f"option {found['loc'][0]!r}: expected one of {', '.join(options.model_fields)}")
    return invalid(error)
