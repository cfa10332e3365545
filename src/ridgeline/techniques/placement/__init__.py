"""Placement: on which ranks experts lie, and how often."""
