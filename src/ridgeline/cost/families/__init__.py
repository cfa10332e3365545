"""Formulas of operator families, one module each, compiled at first use."""
