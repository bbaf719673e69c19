"""How much models know: retrieval, zero-shot, linear probe, few-shot, MMVP-VLM, POPE and captions."""

from antiphase.commands.command import Command
from antiphase.commands.evaluate.options import EvaluateOptions

COMMAND = Command(
    "evaluate",
    EvaluateOptions,
    "antiphase.commands.evaluate.run:run",
    "antiphase.commands.evaluate.result:EvaluateResult",
)
