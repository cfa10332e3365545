"""Adapters: matrices beside a model that requests ask for by name."""
