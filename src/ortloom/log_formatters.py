"""Formatters: one JSON object a record, colours, and stand-ins for those that published logging
configurations of vLLM and uvicorn name."""

import json
import logging
import re
import time
from collections.abc import Mapping
from typing import Any

_COLORS = {
    "DEBUG": "\x1b[37m",
    "INFO": "\x1b[32m",
    "WARNING": "\x1b[33m",
    "ERROR": "\x1b[31m",
    "CRITICAL": "\x1b[35m",
}
_RESET = "\x1b[0m"
_NAMED = re.compile(r"%\((\w+)\)|\{(\w+)|\$\{?(\w+)")


class JsonFormatter(logging.Formatter):
    """One JSON object a record, with the members of vLLM's own JSON lines.

    Args:
        role: what this process is; the member `vllm_process_name`.
    """

    def __init__(self, role: str) -> None:
        super().__init__(datefmt="%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        shown: dict[str, Any] = {
            "asctime": f"{self.formatTime(record, self.datefmt)}.{int(record.msecs):03d}Z",
            "levelname": record.levelname,
            "name": record.name,
            "processName": record.processName,
            "process": record.process,
            "message": record.getMessage(),
            "vllm_process_name": self._role,
        }
        if record.exc_info:
            shown["exc_info"] = self.formatException(record.exc_info)
        return json.dumps(shown, ensure_ascii=False, default=str)


class ColorFormatter(logging.Formatter):
    """A formatter whose level names are coloured."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; the record itself is left as it was."""
        level = record.levelname
        record.levelname = f"{_COLORS.get(level, '')}{level}{_RESET}"
        try:
            return super().format(record)
        finally:
            record.levelname = level


class ForeignFormatter(logging.Formatter):
    """Takes the place of vLLM's and uvicorn's formatters: knows their fields, and puts what comes
    before the message before each further line of it.

    Args:
        fmt: the format.
        datefmt: of times.
        style: %, { or $.
        validate: whether a wrong format is an error.
        defaults: values of fields a record may lack.
        use_colors: taken and not needed.
    """

    role = "ortloom"

    def __init__(
        self,
        fmt: str | None = None,
        datefmt: str | None = None,
        style: Any = "%",
        validate: bool = True,
        *,
        defaults: Mapping[str, Any] | None = None,
        use_colors: bool | None = None,
    ) -> None:
        fields = [name for found in _NAMED.findall(fmt or "") for name in found if name]
        known = dict.fromkeys(fields, "-")
        super().__init__(fmt, datefmt, style, validate, defaults={**known, **(defaults or {})})

    def format(self, record: logging.LogRecord) -> str:
        """The text."""
        fields = record.__dict__
        fields.setdefault("levelprefix", f"{record.levelname}:")
        fields.setdefault("fileinfo", record.filename)
        fields.setdefault("vllm_process_name", self.role)
        text = super().format(record)
        first, *more = record.getMessage().split("\n")
        if not more or first not in text:
            return text
        begin = text[: text.index(first)]
        return text.replace("\n", f"\n{begin}")
