"""Seconds per task."""
