"""Optimizers: what each keeps, moves and computes for a trained tensor."""
