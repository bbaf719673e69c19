"""Training of a ViT or a DiffViT."""

from antiphase.commands.command import Command
from antiphase.commands.train.options import TrainOptions

COMMAND = Command(
    "train",
    TrainOptions,
    "antiphase.commands.train.run:run",
    "antiphase.commands.training_result:TrainingResult",
)
