"""``antiphase verify``: measure again what a robustness card says."""

from antiphase.commands.command import Command
from antiphase.commands.verify.options import VerifyOptions

COMMAND = Command("verify", VerifyOptions, "antiphase.commands.verify.run:answer")
