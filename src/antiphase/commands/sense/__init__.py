"""How sensitive a model's attention is, layer by layer: alignment, Lipschitz constants, depth."""

from antiphase.commands.command import Command
from antiphase.commands.sense.options import SenseOptions

COMMAND = Command(
    "sense", SenseOptions, "antiphase.commands.sense.run:run", "antiphase.commands.sense.result:SenseResult"
)
