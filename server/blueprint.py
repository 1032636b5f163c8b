"""The blueprint of our route modules."""

from collections.abc import Callable
from typing import Any

import sanic


class Blueprint(sanic.Blueprint):  # type: ignore[misc]
    """Sanic's, which does not guess in which form a route's errors are shown.

    The guess parses the source of every handler, a fiftieth of a front's start, and is for Sanic's
    own error pages; ours are all JSON.
    """

    def _determine_error_format(self, handler: Callable[..., Any]) -> str:
        return "json"
