"""A model as safetensors, or on the hub."""

from antiphase.commands.command import Command
from antiphase.commands.export.options import ExportOptions

COMMAND = Command("export", ExportOptions, "antiphase.commands.export.run:run")
