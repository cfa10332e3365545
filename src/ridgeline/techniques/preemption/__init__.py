"""Preemption: what happens to a cache that must give way."""
