"""Where a CLIP and its twin look in images for a text."""

from antiphase.commands.command import Command
from antiphase.commands.look.options import LookOptions

COMMAND = Command(
    "look",
    LookOptions,
    "antiphase.commands.look.run:run",
    "antiphase.commands.look.result:LookResult",
    in_folder=False,
)
