"""The commands: one folder for each, with its options, its run and its result."""

import importlib
from typing import TYPE_CHECKING

from antiphase.errors import UserError

if TYPE_CHECKING:
    from antiphase.commands.command import Command

COMMANDS: dict[str, tuple[str, str]] = {
    "quickstart": (
        "antiphase.commands.audit",
        "Audit the small models that come with the package on images of Fashion-MNIST that come with it too.",
    ),
    "audit": (
        "antiphase.commands.audit",
        "Attack a model, and its twin on the same images; write rows, summary.json, report.html and a card.",
    ),
    "attack": (
        "antiphase.commands.audit",
        "Attack a model, or several, with any attack or ensemble; write rows, summary.json and report.html.",
    ),
    "sense": (
        "antiphase.commands.sense",
        "Measure how sensitive a model's attention is, layer by layer: alignment, Lipschitz constants, depth.",
    ),
    "certify": (
        "antiphase.commands.certify",
        "Certify an L2 radius for each image by randomised smoothing; write rows, summary.json and report.html.",
    ),
    "evaluate": (
        "antiphase.commands.evaluate",
        "Measure how much models know: retrieval, zero-shot, linear probe, few-shot, MMVP-VLM, POPE, captions.",
    ),
    "look": (
        "antiphase.commands.look",
        "Draw where a CLIP and its twin look in images for a text, side by side.",
    ),
    "train": (
        "antiphase.commands.train",
        "Train a ViT or a DiffViT by the robustness paper's recipe (Adam, 5e-4, batches of 128).",
    ),
    "train-clip": (
        "antiphase.commands.train",
        "Train a CLIP or a DiffCLIP on images with captions, by DiffCLIP's recipe.",
    ),
    "train-vlm": (
        "antiphase.commands.train",
        "Train a small vision-language model on an image tower, in two stages, as DiffCLIP does.",
    ),
    "study": (
        "antiphase.studies.command",
        "The papers' tables and figures, and studies of your own. A cell is one training or one measurement.",
    ),
    "export": (
        "antiphase.commands.export",
        "Write a model as safetensors, in our layout or the released one, or put it on the hub.",
    ),
    "rerun": (
        "antiphase.commands.rerun",
        "Repeat a run with the options that it stored, and say whether the numbers are equal.",
    ),
    "verify": (
        "antiphase.commands.verify",
        "Measure again what a robustness card says, and compare every number.",
    ),
    "leaderboard": (
        "antiphase.commands.leaderboard",
        "Draw all robustness cards below a folder as one page, a table for each data set and norm.",
    ),
    "doctor": (
        "antiphase.commands.doctor",
        "Show versions, devices, kernels and data, and how to get what is missing.",
    ),
}
"""Each command's module, which has it as ``COMMAND``, and the first line of its help."""


def find_command(name: str) -> "Command":
    """Return a command by name, such as ``"audit"``.

    Raises:
        UserError: there is no such command.
    """
    place, _ = COMMANDS.get(name.split(" ")[0], ("", ""))
    module = importlib.import_module(place) if place else None
    command = getattr(module, "COMMANDS", {}).get(name) or getattr(module, "COMMAND", None)
    if command is None:  # a group such as study is none
        raise UserError(f"command {name!r}: expected one of {', '.join(COMMANDS)}")
    return command
