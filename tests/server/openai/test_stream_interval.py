"""--stream-interval on the routes that stream; a request's own value wins."""

import msgspec
import pytest

from ortloom.config import SchedulerConfig


@pytest.fixture
def threes(app):
    """The shared server as if it had been started with --stream-interval 3."""
    before = app.context.config
    app.context.config = msgspec.structs.replace(
        before, scheduler=SchedulerConfig(stream_interval=3)
    )
    yield app
    app.context.config = before


PROMPTS = {
    "/v1/completions": {"prompt": "The sea is"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


@pytest.mark.parametrize("path", list(PROMPTS))
@pytest.mark.parametrize(("own", "sizes"), [(None, [1, 3, 3, 1]), (4, [1, 4, 3]), (1, [1] * 8)])
def test_the_servers_interval_holds_where_a_request_has_none(threes, say, path, own, sizes):
    say(" a place of endless wonder", end=False)
    fields = {"model": "tiny", "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    fields |= {"return_token_ids": True, **PROMPTS[path]}
    if own is not None:
        fields["stream_interval"] = own
    events = threes.events(path, fields)
    found = [len(e["choices"][0].get("token_ids") or ()) for e in events]
    assert [count for count in found if count] == sizes
