"""Queues: who is next among those who wait at an instance."""
