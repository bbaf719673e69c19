"""Groups of commands: bare they show their help; the top one imports a command's module when it is asked for."""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command_from_info, get_group_from_info

MODULES = {
    "quickstart": (
        "attack",
        "Audit the small models that come with the package on images of Fashion-MNIST that come with it too.",
    ),
    "audit": (
        "attack",
        "Attack a model, and its twin on the same images; write rows, summary.json, report.html and a card.",
    ),
    "attack": (
        "attack",
        "Attack a model, or several, with any attack or ensemble; write rows, summary.json and report.html.",
    ),
    "sense": (
        "sense",
        "Measure how sensitive a model's attention is, layer by layer: alignment, Lipschitz "
        "constants, depth.",
    ),
    "certify": (
        "certify",
        "Certify an L2 radius for each image by randomised smoothing; write rows, summary.json and "
        "report.html.",
    ),
    "evaluate": (
        "evaluate",
        "Measure how much models know: retrieval, zero-shot, linear probe, few-shot, MMVP-VLM, POPE, "
        "captions.",
    ),
    "look": ("look", "Draw where a CLIP and its twin look in images for a text, side by side."),
    "train": (
        "training",
        "Train a ViT or a DiffViT by the robustness paper's recipe (Adam, 5e-4, batches of 128).",
    ),
    "train-clip": (
        "clip_training",
        "Train a CLIP or a DiffCLIP on images with captions, by DiffCLIP's recipe.",
    ),
    "train-vlm": (
        "vlm_training",
        "Train a small vision-language model on an image tower, in two stages, as DiffCLIP does.",
    ),
    "study": (
        "study",
        "The papers' tables and figures, and studies of your own. A cell is one training or one measurement.",
    ),
    "export": (
        "export",
        "Write a model as safetensors, in our layout or the released one, or put it on the hub.",
    ),
    "rerun": (
        "rerun",
        "Repeat a run with the options that it stored, and say whether the numbers are equal.",
    ),
    "verify": ("verify", "Measure again what a robustness card says, and compare every number."),
    "leaderboard": (
        "leaderboard",
        "Draw all robustness cards below a folder as one page, a table for each data set and norm.",
    ),
    "doctor": ("doctor", "Show versions, devices, kernels and data, and how to get what is missing."),
}
"""The commands: the module of each, and the first line of its help."""


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
            module, _ = MODULES[name]
            importlib.import_module(f"antiphase.cli.{module}")
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
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


def lazy_group(app: typer.Typer) -> type[TyperGroup]:
    """Return the class of an app's top group."""

    class LazyGroup(HelpGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands = _Commands(app)  # type: ignore[assignment]

        def list_commands(self, ctx: Any) -> list[str]:
            return list(MODULES)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            super(TyperGroup, self).format_help(
                ctx, formatter
            )  # plain: rich takes longer to import than all else

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, line) for name, (_, line) in MODULES.items()])

    return LazyGroup
