"""Rendering a request's own chat template in a child process that can be killed."""

import asyncio
import os
import sys
from contextlib import suppress

import msgspec

from ortloom.errors import InvalidRequest
from ortloom.models.template_worker import RenderJob, RenderResult

WALL_SECONDS = 10.0
"""The child is killed after this; its own CPU limit is lower."""


async def render_untrusted(job: RenderJob, places: asyncio.Semaphore) -> str:
    """Render in a child process; cancelling kills it.

    Args:
        job: template and variables.
        places: how many children there may be at a time.

    Raises:
        InvalidRequest: the template fails, refuses, or takes too long or too much memory.
    """
    async with places:
        return await _render(job)


async def _render(job: RenderJob) -> str:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ortloom.models.template_worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={k: v for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH", "LANG", "TZ")},
    )
    try:
        async with asyncio.timeout(WALL_SECONDS):
            output, _ = await child.communicate(msgspec.json.encode(job))
    except TimeoutError:
        raise InvalidRequest("The chat template takes too long.") from None
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    try:
        result = msgspec.json.decode(output, type=RenderResult)
    except msgspec.DecodeError:
        raise InvalidRequest("The chat template takes too long or too much memory.") from None
    if result.error is not None:
        raise InvalidRequest(result.error)
    return result.text
