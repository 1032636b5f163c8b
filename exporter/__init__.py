"""Checkpoint to bundle: the only place that imports torch and transformers."""
