"""The commands: one module or folder for each, with its options, its run and its result."""

import importlib
from typing import TYPE_CHECKING

from antiphase import registry
from antiphase.errors import UserError

if TYPE_CHECKING:
    from antiphase.commands.command import Command

COMMANDS: dict[str, str] = {name: about["help"] for name, about in registry.COMMANDS.items()}
"""The first line of each command's help, by its name."""


def commands_of(name: str) -> "dict[str, Command]":
    """Return the command of a name, or those of a group such as study, by their full names."""
    module = importlib.import_module(registry.COMMANDS[name]["module"])
    commands = {name: module.COMMAND} if hasattr(module, "COMMAND") else module.COMMANDS
    return {full: command for full, command in commands.items() if full.split()[0] == name}


def find_command(name: str) -> "Command":
    """Return a command by name, such as ``"audit"`` or ``"study run"``; a UserError lists those that there are."""
    group = name.split(" ")[0]
    command = commands_of(group).get(name) if group in COMMANDS else None
    if command is None:
        raise UserError(f"command {name!r}: expected one of {', '.join(COMMANDS)}")
    return command
