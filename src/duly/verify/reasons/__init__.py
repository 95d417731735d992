"""Why a task ran, or did not run, at a minute: worked out from a trace, never logged."""

from duly.verify.reasons.answers import Answer, Kind, UnknownTaskError
from duly.verify.reasons.why import why, why_latest

__all__ = ["Answer", "Kind", "UnknownTaskError", "why", "why_latest"]
