"""Bytes held per device, per category, over the step."""
