"""Operators put in place of others."""
