"""Training of a CLIP or a DiffCLIP."""

from antiphase.commands.command import Command
from antiphase.commands.train_clip.options import TrainClipOptions

COMMAND = Command(
    "train-clip",
    TrainClipOptions,
    "antiphase.commands.train_clip.run:run",
    "antiphase.commands.training_result:TrainingResult",
)
