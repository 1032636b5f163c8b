"""Loading Sanic without its HTML error pages.

What draws them, with sources and variables of every frame, takes a tenth of Sanic's own import;
our errors are JSON. Should a page be asked for all the same, it is loaded then.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

_MODULE = "sanic.pages.error"


class _LateErrorPage:
    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        if isinstance(sys.modules.get(_MODULE), _Placeholder):
            del sys.modules[_MODULE]
        return importlib.import_module(_MODULE).ErrorPage(*arguments, **options)


class _Placeholder(ModuleType):
    ErrorPage = _LateErrorPage


def install() -> None:
    """Before Sanic's first import; does nothing after it."""
    if "sanic" not in sys.modules:
        sys.modules[_MODULE] = _Placeholder(_MODULE)
