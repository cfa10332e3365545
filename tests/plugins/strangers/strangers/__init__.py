"""Techniques that another package brings: each is one file here, and one line of its entry points."""
