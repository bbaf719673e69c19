"""Commands as Python functions, over the same models of options."""

import inspect
from typing import Any

from antiphase.runs.audit import prepare
from antiphase.runs.folders import run_folder
from antiphase.runs.options.attack import AuditOptions


def audit(model: Any, **options: Any) -> dict[str, Any]:
    """Audit models as ``antiphase audit`` does, with the same options, defaults and rows; return the summary.

    The run directory ``out`` is the same but for the report, which :func:`antiphase.report.write_report` draws.

    Args:
        model: specification, or several.
        **options: fields of :class:`~antiphase.runs.options.attack.AuditOptions`, as text or as values.

    Raises:
        UserError: an option is not known or not valid, or the audit cannot be run.
    """
    chosen = AuditOptions(model=model, **options)
    given = chosen.model_dump(mode="json", include=chosen.model_fields_set)
    words = ", ".join(f"{name}={value!r}" for name, value in given.items())
    with run_folder(chosen.out, "audit"):
        return prepare(chosen, command=f"antiphase.audit({words})").run()


audit.__signature__ = inspect.signature(AuditOptions)  # type: ignore[attr-defined]
