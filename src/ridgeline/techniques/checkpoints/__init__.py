"""Checkpoints: how states are saved in the course of a run, and how it comes back from a failure."""
