"""Training of classifiers, CLIPs and vision-language models: ``antiphase train``, ``train-clip`` and ``train-vlm``."""

from antiphase.commands.command import Command
from antiphase.commands.train.options import TrainClipOptions, TrainOptions, TrainVlmOptions

COMMANDS = {
    name: Command(
        name, options, "antiphase.commands.train.run:run", "antiphase.commands.train.result:TrainingResult"
    )
    for name, options in (
        ("train", TrainOptions),
        ("train-clip", TrainClipOptions),
        ("train-vlm", TrainVlmOptions),
    )
}
