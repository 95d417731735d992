"""`duly run --log-format json`: the daemon's log as one JSON object a line.

An event has `time`, `level`, `event` and its fields as they are (spec/timers.md 8.3); anything else that is
said has a `message`. Lines that are written to stderr without the log become such objects, too.
"""

import io
import json
import logging
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).astimezone()
        said = {"time": moment.isoformat(timespec="milliseconds"), "level": record.levelname}
        event = getattr(record, "event", None)
        fields = record.__dict__.get("fields", {})
        told = {"message": record.getMessage()} if event is None else {"event": event, **fields}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        # A path or an argument may hold bytes that are no text.
        text = json.dumps({**told, **said}, ensure_ascii=False, default=str)
        return text.encode(errors="backslashreplace").decode()


class JsonStream(io.TextIOBase):
    """A stderr whose lines become warnings of the log that *handler* writes."""

    def __init__(self, handler: logging.Handler) -> None:
        self._handler = handler

    def write(self, text: str) -> int:
        for line in text.splitlines():
            self._handler.emit(logging.LogRecord("duly", logging.WARNING, "", 0, line, None, None))
        return len(text)

    def writable(self) -> bool:
        return True
