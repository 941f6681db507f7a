"""The report of a run, as one page."""

from nas.report.page import write_report

__all__ = ["write_report"]
