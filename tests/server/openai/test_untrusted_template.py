"""Children that render templates of requests are few."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from ortloom.server.context import OWN_TEMPLATES
from ortloom.server.openai import untrusted_template

PATH = "/v1/chat/completions"


def test_templates_of_requests_wait_for_a_place(serve, say, monkeypatch):
    """Each child may use a gigabyte: as many requests as come must not mean as many children."""
    now, most = [0], [0]

    async def slow(job):
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0.02)
        now[0] -= 1
        return "x"

    monkeypatch.setattr(untrusted_template, "_render", slow)
    say("sea")
    with serve(front={"trust_request_chat_template": True}) as app, ThreadPoolExecutor(12) as pool:
        messages = [{"role": "user", "content": "hi"}]
        bodies = [{"messages": messages, "chat_template": "{{ 1 }}"}] * 24
        replies = list(pool.map(lambda fields: app.post(PATH, fields).status_code, bodies))
    assert replies == [200] * 24
    assert 1 < most[0] <= OWN_TEMPLATES
