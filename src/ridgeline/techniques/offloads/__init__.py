"""Offloads: what of training is in host memory or on drives, when it moves and who updates it."""
