"""Expert exchanges: in which pieces and on which streams rows go to experts of other ranks and back in training."""
