"""Peers measured beside ortloom, each in a venv of its own under build/peers."""
