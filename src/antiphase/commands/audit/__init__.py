"""Attacks on models and their twins: ``antiphase audit``, ``attack`` and ``quickstart``."""

from antiphase.commands.audit.options import AttackOptions, AuditOptions, QuickstartOptions
from antiphase.commands.command import Command

_RUN, _RESULT = "antiphase.commands.audit.run:run", "antiphase.commands.audit.result:AuditResult"
COMMANDS = {
    "audit": Command("audit", AuditOptions, _RUN, _RESULT),
    "attack": Command("attack", AttackOptions, _RUN, _RESULT),
    "quickstart": Command(
        "quickstart", QuickstartOptions, "antiphase.commands.audit.run:quickstart", _RESULT
    ),
}
