"""Executes plans for real on local devices, and compares them with their predictions."""
