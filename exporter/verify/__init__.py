"""Proof that a bundle computes what transformers computes."""
