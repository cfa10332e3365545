"""Processors beside the device that compute prompts."""
