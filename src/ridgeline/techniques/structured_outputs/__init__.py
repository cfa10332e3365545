"""Structured outputs: what constraining outputs to a grammar costs."""
