"""Recompute: what forward keeps for backward, and what backward computes again."""
