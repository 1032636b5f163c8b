"""Reasoning parsers, one format a file."""
