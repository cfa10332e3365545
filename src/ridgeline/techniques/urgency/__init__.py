"""Urgency: who gives way to whom."""
