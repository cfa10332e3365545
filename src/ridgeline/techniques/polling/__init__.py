"""Polling: when a scheduler takes new prompts."""
