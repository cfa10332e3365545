"""What a technique may fill: the protocols, the registry of who fills them, and one check of who goes with whom."""
