"""The reference of commands: a page for each, with every option as typer knows it."""

import inspect
from collections.abc import Iterator
from typing import Any

import typer.main

from antiphase.cli.app import app


def command_pages() -> Iterator[tuple[str, str, str]]:
    """Yield (title, path in the site, Markdown) of each page."""
    group: Any = typer.main.get_command(app)
    for name in group.commands:
        command = group.get_command(None, name)
        lines = _described(f"antiphase {name}", command, 1)
        for below, inner in getattr(command, "commands", {}).items():
            lines += _described(f"antiphase {name} {below}", inner, 2)
        yield name, f"reference/commands/{name}.md", "\n".join(lines)


def _described(title: str, command: Any, level: int) -> list[str]:
    """Return the help of one command as Markdown."""
    text, _, examples = inspect.cleandoc(command.help or "").partition("**Examples**")
    lines = [f"{'#' * level} `{title}`", "", text.strip(), ""]
    if examples:
        lines += ["```text", *(line.strip() for line in examples.splitlines() if line.strip()), "```", ""]
    if getattr(command, "commands", None):
        return lines
    usage = " ".join(
        [title, *(_usage(param) for param in command.params if param.param_type_name == "argument"), "[OPTIONS]"]
    )
    lines += ["```text", usage, "```", ""]
    for param in command.params:
        if not getattr(param, "hidden", False):
            lines += [_names(param), f":   {_help(param)}", ""]
    return lines


def _usage(argument: Any) -> str:
    word = argument.metavar or argument.name.upper()
    return word if argument.required else f"[{word}]"


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_usage(parameter)}`"
    flags = [*parameter.opts, *parameter.secondary_opts]
    value = "" if parameter.is_flag else f" {parameter.metavar}"
    return ", ".join(f"`{flag}{value}`" for flag in flags)


def _help(parameter: Any) -> str:
    """Return the help of a parameter with its default."""
    text = " ".join((parameter.help or "").split()).replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
    default = parameter.default
    if parameter.required:
        return f"{text} Required."
    if default in (None, (), [], "", False, True) or callable(default):
        return text
    return f"{text} Default: `{default}`."
