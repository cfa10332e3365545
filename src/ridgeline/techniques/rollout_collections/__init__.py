"""Which responses an iteration of post-training waits for, and what becomes of the rest."""
