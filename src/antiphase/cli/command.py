"""From a model of options to a command of typer: each field becomes one option or argument."""

import inspect
import types
from collections.abc import Callable
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from antiphase.runs.options.base import Options, Typed

Body = Callable[[Any], None]


def command(app: typer.Typer, options: type[Options], name: str | None = None) -> Callable[[Body], Body]:
    """Register a function of one model of options as a command.

    Only what was typed reaches the model, so that its ``model_fields_set`` tells what the user asked for.

    Args:
        app: where the command is registered.
        options: the model; its fields are the command's options, in their order.
        name: of the command; the function's where not given.
    """

    def register(body: Body) -> Body:
        def call(context: typer.Context, /, **values: Any) -> None:
            typed = {key: value for key, value in values.items() if _source(context, key) != "DEFAULT"}
            body(options(**{key: _plain(value) for key, value in typed.items()}))

        parameters = [inspect.Parameter("context", _KEYWORD, annotation=typer.Context)]
        parameters += [
            _parameter(key, field)
            for key, field in options.model_fields.items()
            if key not in options.left_out
        ]
        signature = inspect.Signature(parameters)

        def shown(*args: Any, **values: Any) -> None:
            call(values.pop("context"), **values)

        shown.__signature__ = signature  # type: ignore[attr-defined]
        shown.__annotations__ = {each.name: each.annotation for each in parameters}
        shown.__doc__, shown.__name__ = body.__doc__, body.__name__
        app.command(name)(shown)
        return body

    return register


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _source(context: typer.Context, key: str) -> str:
    source = context.get_parameter_source(key)
    return "DEFAULT" if source is None else source.name


def _plain(value: Any) -> Any:
    """Return the string behind a member of an enumeration."""
    return str(value) if isinstance(value, StrEnum) else value


def _parameter(key: str, field: FieldInfo) -> inspect.Parameter:
    """Return the parameter from which typer makes the option or argument of a field."""
    shown = _shown(field)
    kind = _kind(key, field.annotation, shown)
    extra: dict[str, Any] = {"help": field.description, "metavar": shown.metavar, "hidden": shown.hidden}
    for bound in field.metadata:
        if kind in (int, float, int | None, float | None):
            extra |= {"min": bound.ge} if hasattr(bound, "ge") else {}
            extra |= {"max": bound.le} if hasattr(bound, "le") else {}
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
    return None if default in ((), []) else default


def _shown(field: FieldInfo) -> Typed:
    """Return how a field is shown: of several markers, the last that says something counts."""
    found: dict[str, Any] = {}
    for marker in field.metadata:
        if isinstance(marker, Typed):
            found |= {
                each.name: getattr(marker, each.name)
                for each in fields(marker)
                if getattr(marker, each.name) != each.default
            }
    return Typed(**found)


def _kind(key: str, annotation: Any, shown: Typed) -> Any:
    """Return the type that typer is to read: text where the field's validator reads it, choices as an enumeration."""
    optional = False
    if get_origin(annotation) in (Union, types.UnionType):
        annotation, *_ = (part for part in get_args(annotation) if part is not type(None))
        optional = True
    if shown.choices is not None:
        annotation = _enumeration(key, shown.choices)
    elif shown.text is not None:
        annotation = str
    elif get_origin(annotation) is Literal:
        annotation = _enumeration(key, get_args(annotation))
    elif get_origin(annotation) is tuple:
        annotation = list[get_args(annotation)[0]]
    return annotation | None if optional else annotation


def _enumeration(key: str, choices: Any) -> Any:
    return StrEnum(key, {choice: choice for choice in choices})


def _parser(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a check whose mistakes typer reports with the option's name."""

    def read(text: str | Path) -> Any:
        try:
            return check(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return read
