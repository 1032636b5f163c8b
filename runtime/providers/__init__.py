"""Execution providers, one a file, and the choice between them."""
