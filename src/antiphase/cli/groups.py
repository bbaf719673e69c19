"""Groups of commands: bare they show their help; the top one imports a command's module when it is asked for."""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command_from_info, get_group_from_info

from antiphase.commands import COMMANDS


class HelpGroup(TyperGroup):
    """A group that shows its help where no command is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])


class _Commands(Mapping[str, Any]):
    """The commands of an app, each built when it is asked for."""

    def __init__(self, app: typer.Typer) -> None:
        self.app = app
        self.built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.built:
            module, _ = COMMANDS[name]
            command = importlib.import_module(module)
            from antiphase.cli.command import register  # imports pydantic

            if all(one.name != name for one in self.app.registered_commands):
                register(self.app, name, command)
            self.built[name] = self._build(name)
        return self.built[name]

    def _build(self, name: str) -> Any:
        how: dict[str, Any] = {
            "pretty_exceptions_short": self.app.pretty_exceptions_short,
            "rich_markup_mode": self.app.rich_markup_mode,
        }
        for group in self.app.registered_groups:
            if group.name == name:
                return get_group_from_info(group, suggest_commands=True, **how)
        (found,) = (one for one in self.app.registered_commands if one.name == name)
        return get_command_from_info(found, **how)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def lazy_group(app: typer.Typer) -> type[TyperGroup]:
    """Return the class of an app's top group."""

    class LazyGroup(HelpGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands = _Commands(app)  # type: ignore[assignment]

        def list_commands(self, ctx: Any) -> list[str]:
            return list(COMMANDS)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            super(TyperGroup, self).format_help(
                ctx, formatter
            )  # plain: rich takes longer to import than all else

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    return LazyGroup
