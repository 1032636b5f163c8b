"""Measuring: an HTTP load client, data sets of prompts, statistics, and runs in this process."""
