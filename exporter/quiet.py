"""Keeps the libraries' own log lines out of an export's output."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

NOISY = ("torch", "transformers", "onnxscript", "onnx_ir")


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Errors only, from torch's exporter, transformers and the ONNX tools; restored afterwards."""
    loggers = [logging.getLogger(name) for name in NOISY]
    loggers += [
        logger
        for name, logger in logging.Logger.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and name.startswith(NOISY)
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
