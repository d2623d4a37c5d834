"""Log lines as JSON, one object per line: the text, and the fields that a program searches for."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Formats a log record as one line: time (UTC), level, logger, process, message, and its `extra` fields.

    A line of the consumer about an event carries `event_id`, `event_type`, `aggregate`, `attempt`, `topic`,
    `partition` and `offset`. A traceback is in `exception`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without a line break."""
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        document |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)
