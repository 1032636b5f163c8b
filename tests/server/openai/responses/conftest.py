"""An app that stores responses, over the scripted engine."""

import json

import pytest

PATH = "/v1/responses"


@pytest.fixture(scope="session")
def storing_app(start):
    with start(front={"enable_responses_store": True}) as running:
        yield running


@pytest.fixture
def storing(storing_app, engine):
    """Stores responses; the engine behind it is as new for every test."""
    return storing_app


@pytest.fixture
def events_of():
    """The events of a stream as objects; names and numbers are checked on the way."""

    def parse(response, first=0):
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        found = []
        for block in response.text.split("\n\n"):
            if not block or block.startswith(":"):
                continue
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            assert event["sequence_number"] == first + len(found)
            found.append(event)
        return found

    return parse
