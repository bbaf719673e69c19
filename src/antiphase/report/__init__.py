"""Tables, figures and self-contained pages, made only from the stored files of a run."""

from antiphase.report.runs.page import write_report
from antiphase.report.runs.tables import console_table

__all__ = ["console_table", "write_report"]
