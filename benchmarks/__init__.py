"""Benchmarks that anyone can run: `python -m benchmarks.NAME` from the repository root."""
