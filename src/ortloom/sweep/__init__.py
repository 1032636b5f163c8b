"""Benchmarks over sets of parameters: `ortloom bench sweep`."""
