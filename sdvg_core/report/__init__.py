"""What a run did: the report, its JSON, its pictures and its progress on a terminal."""

from .assemble import assemble_report
from .picture import route_picture
from .run_report import RunReport, read_report
from .summary import summarise

__all__ = ["RunReport", "assemble_report", "read_report", "route_picture", "summarise"]
