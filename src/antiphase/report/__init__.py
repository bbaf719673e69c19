"""Tables, figures and self-contained pages, made only from the stored files of a run."""

from antiphase.report.runs.console import console_report
from antiphase.report.runs.page import write_report
from antiphase.report.runs.stored import read_run

__all__ = ["console_report", "read_run", "write_report"]
