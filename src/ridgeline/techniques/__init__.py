"""One published idea in one file: what it does, its parameters, the seams that it fills, where it comes from."""
