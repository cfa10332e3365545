"""Disaggregation: attention and experts on devices of their own."""
