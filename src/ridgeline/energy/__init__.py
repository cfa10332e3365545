"""Joules, carbon and money."""
