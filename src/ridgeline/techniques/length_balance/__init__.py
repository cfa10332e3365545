"""How sequences of unlike lengths of one training step are divided among ranks."""
