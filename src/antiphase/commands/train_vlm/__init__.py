"""Training of a vision-language model, a stage at a time."""

from antiphase.commands.command import Command
from antiphase.commands.train_vlm.options import TrainVlmOptions

COMMAND = Command(
    "train-vlm",
    TrainVlmOptions,
    "antiphase.commands.train_vlm.run:run",
    "antiphase.commands.training_result:TrainingResult",
)
