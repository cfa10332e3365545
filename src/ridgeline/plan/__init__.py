"""What we choose: plans as pure data."""
