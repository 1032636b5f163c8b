"""Tool-call parsers, one wire format a file."""
