"""What a person wrote, as a file or as flags, read into typed tables."""
