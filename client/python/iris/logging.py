"""The log of the package: standard logging under the name "iris", with lines `[iris] [rank/n] message`.

IRIS_LOG_LEVEL (debug, info, warning, error, off) is the level, as for the library. It is info by default, because the
package itself logs only warnings and errors. A context refuses other values. The log goes to standard error until a
program gives the logger its own handler.
"""

from __future__ import annotations

import logging
import os
import sys

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
_LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING, "warn": WARNING, "error": ERROR,
           "off": logging.CRITICAL + 1}


class _Formatter(logging.Formatter):
    name = "[iris]"

    def format(self, record: logging.LogRecord) -> str:
        rank = getattr(record, "iris_rank", None)
        where = "" if rank is None else f"[{rank}/{record.iris_num_ranks}] "  # type: ignore[attr-defined]
        return f"{self.name} {where}{record.getMessage()}"


class IrisFormatter(_Formatter):
    """Formats lines as the reference does, for a program's own handlers: `[Iris] [rank/n] message`."""

    name = "[Iris]"


class _StandardError(logging.StreamHandler):  # type: ignore[type-arg]  # a generic of the stubs alone
    """Logs to sys.stderr as it is at the time of logging."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


logger = logging.getLogger("iris")
logger.setLevel(_LEVELS.get(os.environ.get("IRIS_LOG_LEVEL", "").lower(), INFO))
if not logger.handlers:
    _handler = _StandardError()
    _handler.setFormatter(_Formatter())
    logger.addHandler(_handler)
    logger.propagate = False


def set_logger_level(level: int) -> None:
    """Sets the level: DEBUG, INFO, WARNING or ERROR."""
    logger.setLevel(level)
