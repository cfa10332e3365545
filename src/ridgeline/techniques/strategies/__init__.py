"""Strategies: layers of one model that are divided, sharded and recomputed each in its own way."""
