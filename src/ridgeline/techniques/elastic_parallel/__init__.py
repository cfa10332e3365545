"""Elastic parallelism: prompts that several instances compute together."""
