"""Fits the few physical parameters of mechanisms to measured kernels."""
