"""Beams: several continuations of every prompt at once."""
