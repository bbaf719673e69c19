"""Audits and attacks from Python objects, for tests."""

from antiphase.commands.audit import AuditOptions
from antiphase.commands.audit.run import run
from antiphase.commands.lineup import Lineup
from antiphase.commands.result import read_result


def attack_options(eps, **values):
    """Return options of an attack on models that a test has in memory; its passes depend on what it searches in."""
    return AuditOptions(model=("m",), eps=eps, **{"sense_limit": 0, "quiet": True, "precision": "float32", **values})


def audit(models, twins, data, options, out, **values):
    """Audit loaded models and return the summary."""
    out.mkdir(parents=True, exist_ok=True)
    return run(options.model_copy(update={"out": out, **values}), lineup=Lineup(models, twins, data))


def audited(directory):
    """Return the result of an audit in a directory."""
    return read_result(directory, "audit")


def report(directory):
    """Write the report of an audit and return its path."""
    return audited(directory).write_report(directory)
