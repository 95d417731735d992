"""Why a task ran, or did not run, at a minute: worked out from a trace, never logged.

    trace -> chronicle (asks a judge what the task may be) -> why -> answers (sentences, and their words)

Every due has exactly one answer. Where a crash leaves open what was remembered, the answer says "perhaps".
"""

from duly.verify.reasons.answers import Answer, Kind, UnknownTaskError
from duly.verify.reasons.why import why, why_latest

__all__ = ["Answer", "Kind", "UnknownTaskError", "why", "why_latest"]
