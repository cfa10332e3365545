"""How sequences of unlike lengths fill the rows of a training batch in post-training."""
