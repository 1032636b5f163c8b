"""The Messages API: bodies, conversion to the chat pipeline, replies and events."""
