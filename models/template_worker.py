"""Renders one chat template that nobody vouches for: `python -m ortloom.models.template_worker`.

Reads a `RenderJob` as JSON from standard input and writes a `RenderResult` to standard output. The
process limits its own CPU time and memory before it looks at the template; whoever starts it also
limits its wall time and kills it.
"""

import resource
import sys
from typing import Any

import msgspec

from ortloom.errors import InvalidRequest
from ortloom.models.chat_template import ChatTemplate

CPU_SECONDS = 2
MEMORY_BYTES = 1024 * 1024 * 1024
OUTPUT_CHARACTERS = 16 * 1024 * 1024


class RenderJob(msgspec.Struct, kw_only=True):
    """A template and its variables. `messages` holds both content forms; the template decides
    when `form` is auto."""

    source: str
    special_tokens: dict[str, str]
    form: str
    messages: dict[str, list[dict[str, Any]]]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    kwargs: dict[str, Any] = {}


class RenderResult(msgspec.Struct, kw_only=True):
    """The text, or why there is none."""

    text: str = ""
    error: str | None = None


def run(job: RenderJob) -> RenderResult:
    """Compile and render; every failure of the template is a result."""
    try:
        template = ChatTemplate({"default": job.source}, job.special_tokens)
        form = template.content_format if job.form == "auto" else job.form
        text = template.render(
            job.messages[form],
            tools=job.tools,
            documents=job.documents,
            add_generation_prompt=job.add_generation_prompt,
            continue_final_message=job.continue_final_message,
            kwargs=job.kwargs,
        )
    except InvalidRequest as error:
        return RenderResult(error=str(error))
    except MemoryError:
        return RenderResult(error="The chat template needs too much memory.")
    if len(text) > OUTPUT_CHARACTERS:
        return RenderResult(error="The chat template writes too much text.")
    try:
        text.encode()
    except UnicodeEncodeError:
        return RenderResult(error="The chat template writes half of a surrogate pair.")
    return RenderResult(text=text)


def main() -> None:
    """Serve one job."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=RenderJob)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.buffer.write(msgspec.json.encode(run(job)))


if __name__ == "__main__":
    main()
