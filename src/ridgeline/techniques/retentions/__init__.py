"""Retentions: for how long the cache of a turn is held for the next one of its session."""
