"""Requests of every kind at once against a real server, compared with their solo runs."""
