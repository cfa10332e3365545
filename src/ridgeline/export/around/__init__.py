"""What runs an exported config on a cluster: a script or manifest of a scheduler, a file each."""
