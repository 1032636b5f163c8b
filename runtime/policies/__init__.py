"""Scheduling policies, one a file."""
