"""One page about a fitted model and a data set, in one file that needs nothing else."""

from weft.report.building import build_report, write_report

__all__ = ["build_report", "write_report"]
