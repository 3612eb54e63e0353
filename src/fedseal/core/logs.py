"""Logs of a running federation: as Python does it, or one JSON object per line.

fedseal logs under the name `fedseal` and leaves handlers to whoever runs the process. `FEDSEAL_LOG_FORMAT=json` (or
`fedseal --log-format json`) attaches one that writes JSON lines to stderr; `FEDSEAL_LOG_LEVEL` sets its level.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from fedseal.core.errors import UsageError

LogFormat: TypeAlias = Literal["text", "json"]

_FORMATS = ("text", "json")
_LEVELS = ("debug", "info", "warning", "error")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_ROOT = "fedseal"


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, logger, message, what was given as `extra`, and the error's text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; what JSON has no word for is written as text."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Stderr(logging.StreamHandler[Any]):
    """Writes to stderr as it is when a record is written, and is known again by its type."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure_logs(log_format: str | None = None, level: str | None = None) -> LogFormat:
    """Attach the handler of a format, and return the format that is in use.

    Args:
        log_format: `text` or `json`; by default as `FEDSEAL_LOG_FORMAT` says, or else `text`, which attaches nothing.
        level: by default as `FEDSEAL_LOG_LEVEL` says, or else `info`.
    """
    chosen = _one_of(_FORMATS, "log format", log_format or os.environ.get("FEDSEAL_LOG_FORMAT") or "text")
    wanted = _one_of(_LEVELS, "log level", level or os.environ.get("FEDSEAL_LOG_LEVEL") or "info")
    logger = logging.getLogger(_ROOT)
    for handler in [known for known in logger.handlers if isinstance(known, _Stderr)]:
        logger.removeHandler(handler)
        logger.propagate = True
    if chosen == "text":
        return "text"
    handler = _Stderr()
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    logger.setLevel(wanted.upper())
    logger.propagate = False  # or the process's own handlers would write each record again, as text
    return "json"


def _one_of(known: tuple[str, ...], what: str, given: str) -> str:
    if given.lower() not in known:
        raise UsageError(f"there is no {what} {given!r}.", hint=f"Use {', '.join(known)}.")
    return given.lower()
