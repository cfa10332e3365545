"""Experts in host memory: who computes each of them, and what crosses the link."""
