"""OpenAI's batch format without a service: `ortloom run-batch`."""
