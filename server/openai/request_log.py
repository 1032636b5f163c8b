"""One log line a request, for servers started with `--enable-log-requests`.

Prompts are private: without the flag nothing of them is logged, and `--max-log-len` cuts what is.
"""

import logging

from ortloom.config import LogConfig
from ortloom.server.openai.generation import GenerationJob

log = logging.getLogger("ortloom.requests")


def log_request(job: GenerationJob, config: LogConfig) -> None:
    """Log prompts (text, or token ids where there is no text) and sampling parameters.

    Args:
        job: the request.
        config: `log_requests` switches it on; `max_log_len` is a limit in characters of text and
            in token ids, None = whole prompts.
    """
    if not config.log_requests:
        return
    cut = config.max_log_len
    for prompt in job.prompts:
        shown = prompt.token_ids[:cut] if prompt.text is None else repr(prompt.text[:cut])
        log.info(
            "request %r: prompt %s (%d tokens), max_tokens %d, n %d, priority %d, %r",
            job.response_id,
            shown,
            len(prompt.token_ids),
            prompt.max_tokens,
            job.n,
            job.priority,
            job.params,
        )
