"""Tables, figures and one self-contained page, drawn from the stored files of a run alone."""

from antiphase.report.runs.page import write_report
from antiphase.report.runs.tables import console_table

__all__ = ["console_table", "write_report"]
