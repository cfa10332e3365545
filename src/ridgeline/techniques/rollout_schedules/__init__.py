"""When generation and training of post-training follow each other, and how far they may overlap."""
