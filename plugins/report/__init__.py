"""The report of a run: ledger state and store facts to metrics, a JSON document, HTML, and a table for the terminal."""

from rerail.plugins.report.document import Report, build_report
from rerail.plugins.report.facts import RunFacts, read_facts
from rerail.plugins.report.html import placed, render, write

__all__ = ["Report", "RunFacts", "build_report", "placed", "read_facts", "render", "write"]
