"""Log formats, and the one log handler of a process. Only the `main` of a command calls `configure`.

Modules log one line for each change of state, by `logging.getLogger(__name__)`: INFO for a normal change, WARNING where
something is degraded and we continue, ERROR where something failed and needs a person, DEBUG for details. Nothing is
logged per message or telemetry window.
"""

import argparse
import json
import logging
import os
from datetime import UTC, datetime
from typing import TextIO

from c4bench.foreign_text import lines, one_line

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
_PACKAGE = "c4bench"
_LONGEST_MESSAGE = 8000
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_OF_EVERY_RECORD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class Text(logging.Formatter):
    """`TIME LEVEL LOGGER: MESSAGE`, time in UTC; a traceback follows on its own lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        return f"{_time(record)} {record.levelname} {_said(record)}{self._trace(record)}"

    def _trace(self, record: logging.LogRecord) -> str:
        return f"\n{lines(self.formatException(record.exc_info))}" if record.exc_info else ""


class Journal(Text):
    """For a stderr that is the systemd journal: a syslog priority before each line (sd-daemon(3)), and no time."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        prefix = f"<{_PRIORITIES.get(record.levelno, 5)}>"
        return prefix + f"{_said(record)}{self._trace(record)}".replace("\n", f"\n{prefix}")


class Json(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, the fields of `extra`, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        extra = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        if record.exc_info:
            extra["exception"] = self.formatException(record.exc_info)
        own = {"time": _time(record), "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        return json.dumps(own | {name: value for name, value in extra.items() if name not in own}, default=str)


def add_options(parser: argparse.ArgumentParser, level: str) -> None:
    """Add `--log-level`, with this default, and `--log-format` to a command."""
    parser.add_argument("--log-level", choices=LEVELS, default=level, help=f"lowest level on stderr (default {level})")
    parser.add_argument("--log-format", choices=FORMATS, default="text", help="text, or one JSON object per line")


def configure(level: str, form: str = "text", stream: TextIO | None = None) -> None:
    """Log to `stream`, stderr by default, from `level` (one of LEVELS) on; other packages from WARNING on at least."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Json() if form == "json" else Journal() if _is_journal(handler.stream) else Text())
    least = logging.getLevelNamesMapping()[level.upper()]
    handler.set_name(_PACKAGE)
    root = logging.getLogger()
    for earlier in [one for one in root.handlers if one.name == _PACKAGE]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(max(least, logging.WARNING))
    logging.getLogger(_PACKAGE).setLevel(least)


def _is_journal(stream: TextIO) -> bool:
    """Whether the stream is the journal: systemd names its device and inode in JOURNAL_STREAM (systemd.exec(5))."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _said(record: logging.LogRecord) -> str:
    """Logger and message on one line; what does not print is escaped."""
    return f"{record.name}: {one_line(record.getMessage(), _LONGEST_MESSAGE)}"
