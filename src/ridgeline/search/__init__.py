"""Every legal plan bounded, the promising ones simulated."""
