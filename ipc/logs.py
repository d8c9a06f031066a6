"""One logging setup for every process: time, level, process name, message; to stderr, as text or JSON, a line each."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal

LogFormat = Literal["text", "json"]

_REQUEST_ID = re.compile(r"\brequest_id=([A-Za-z0-9._:\-]+)")  # as every message writes it that is about a request


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON.

    Args:
        process: the name of this process.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line: time (UTC), level, process, logger, message; request_id and exception where there are."""
        message = record.getMessage()
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": message,
        }
        found = _REQUEST_ID.search(message)
        if found is not None:
            fields["request_id"] = found.group(1)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def setup_logging(process: str, level: str, log_format: LogFormat = "text") -> None:
    """Send this process's log lines to stderr.

    Args:
        process: its tag.
        level: "debug" ... "error"; what is below is left out.
        log_format: with "json", what other libraries warn of and what nobody caught is JSON as well, so that each line
            can be parsed.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(process, log_format))
    logger = logging.getLogger("pagewire")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    if log_format == "json":
        logging.getLogger().handlers[:] = [handler]
        logging.captureWarnings(True)
        _log_what_nobody_catches(logger)


def current_log_format() -> LogFormat:
    """Return the format that this process logs in, which its children take over."""
    handlers = logging.getLogger("pagewire").handlers
    return "json" if any(isinstance(handler.formatter, JsonFormatter) for handler in handlers) else "text"


def _log_what_nobody_catches(logger: logging.Logger) -> None:
    def log(
        kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None, where: str
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            return
        logger.error("nobody caught an exception in %s", where, exc_info=(kind, error or kind(), traceback))

    def in_thread(args: threading.ExceptHookArgs) -> None:
        log(args.exc_type, args.exc_value, args.exc_traceback, args.thread.name if args.thread else "a thread")

    sys.excepthook = lambda kind, error, traceback: log(kind, error, traceback, "the main thread")
    threading.excepthook = in_thread
    sys.unraisablehook = lambda args: log(args.exc_type, args.exc_value, args.exc_traceback, repr(args.object))


def _formatter(process: str, log_format: LogFormat) -> logging.Formatter:
    if log_format == "json":
        return JsonFormatter(process)
    return logging.Formatter(f"%(levelname)s %(asctime)s [{process}] %(message)s", datefmt="%m-%d %H:%M:%S")
