"""The terminal: talks to people, does no arithmetic."""
