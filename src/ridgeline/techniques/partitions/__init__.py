"""Partitions: one device divided between prompts and decode steps."""
