"""Executes things for real: a person's kernel against its reference, a plan on local devices."""
