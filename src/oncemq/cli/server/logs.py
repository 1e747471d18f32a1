"""Logging to standard error, as text for people or JSON for programs. It is set up only here."""

from __future__ import annotations

import json
import logging
import sys
import time

from oncemq.terminal import has_colours, printable, printable_json

_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
#: Attributes of every record. All others were given with `extra`.
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    def __init__(self, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower():7}"
        if self._colours:
            level = f"\033[{_COLOURS.get(record.levelname, '0')}m{level}\033[0m"
        extras = "".join(f" {name}={value}" for name, value in extras_of(record).items())
        # A message may contain names that clients chose.
        text = f"{_time_text(record)} {level} {record.name}: {printable(record.getMessage() + extras)}"
        return text + ("\n" + printable(self.formatException(record.exc_info)) if record.exc_info else "")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time_text(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
            **extras_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(line, ensure_ascii=False, default=str))


def extras_of(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _time_text(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.created % 1 * 1000):03d}Z"


def set_up(level: str, form: str) -> None:
    """Configure the root logger; `form` is "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(has_colours(sys.stderr)))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
