"""The commands: one module or folder for each, with its options, its run and its result."""

import importlib
from typing import TYPE_CHECKING

from antiphase.errors import UserError

if TYPE_CHECKING:
    from antiphase.commands.command import Command

_LINES = """\
quickstart Attack the bundled models on bundled images of Fashion-MNIST.
audit Attack a model, and its twin on the same images; write rows, summary.json, report.html and a card.
attack Attack a model, or several, with any attack or ensemble; write rows, summary.json and report.html.
sense Measure how sensitive a model's attention is, layer by layer: alignment, Lipschitz constants, depth.
transfer Show the adversarial images of each model to all others; write rows, summary.json and report.html.
check Say whether a module computes differential attention, which variant it is, and what is off.
certify Certify an L2 radius for each image by randomised smoothing; write rows, summary.json and report.html.
evaluate Measure how much models know: retrieval, zero-shot, linear probe, few-shot, MMVP-VLM, POPE, captions.
look Draw where a CLIP and its twin look in images for a text, side by side.
train Train a ViT, a DiffViT or any other classifier by the robustness paper's recipe (Adam, 5e-4, batches of 128).
train-clip Train a CLIP or a DiffCLIP on images with captions, by DiffCLIP's recipe.
train-vlm Train a small vision-language model on an image tower, in two stages, as DiffCLIP does.
finetune Fine-tune the image tower of a CLIP by FARE: a perturbed image keeps the embedding of the clean one.
study The papers' tables and figures, and studies of your own. A cell is one training or one measurement.
convert Make a differential model that starts from the outputs of a ViT or CLIP with standard attention.
export Write a model as safetensors, for antiphase, another library or DiffCLIP's code, or put it on the hub.
compare Compare two runs: paired differences on the images and ε that both have, and what differs in settings.
rerun Repeat a run with the options that it stored, and say whether the numbers are equal.
verify Measure again what a robustness card, or RobustBench's leaderboard, says, and compare every number.
leaderboard Rank the models of all robustness cards below a folder on one page, for each data set, norm and ε.
doctor Show versions, devices, kernels and data, and how to get what is missing.
"""
COMMANDS: dict[str, str] = {name: line for name, line in (one.split(" ", 1) for one in _LINES.splitlines())}
"""The first line of each command's help, by its name."""

_MODULES = {
    "quickstart": "antiphase.commands.audit",
    "attack": "antiphase.commands.audit",
    "export": "antiphase.commands.convert",
    "train-clip": "antiphase.commands.train",
    "train-vlm": "antiphase.commands.train",
    "finetune": "antiphase.commands.train",
    "study": "antiphase.studies.command",
}


def commands_of(name: str) -> "dict[str, Command]":
    """Return the command of a name, or those of a group such as study, by their full names."""
    module = importlib.import_module(_MODULES.get(name, f"antiphase.commands.{name}"))
    commands = {name: module.COMMAND} if hasattr(module, "COMMAND") else module.COMMANDS
    return {full: command for full, command in commands.items() if full.split()[0] == name}


def find_command(name: str) -> "Command":
    """Return a command by name, such as ``"audit"`` or ``"study run"``; a UserError lists those that there are."""
    group = name.split(" ")[0]
    command = commands_of(group).get(name) if group in COMMANDS else None
    if command is None:
        raise UserError(f"command {name!r}: expected one of {', '.join(COMMANDS)}")
    return command
