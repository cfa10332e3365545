"""Requests over time: engines' policies, traffic, the replay of a deployment and what its users see."""
