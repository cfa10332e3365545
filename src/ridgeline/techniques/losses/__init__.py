"""Losses: which logits each holds, and when it makes the gradient of the head."""
