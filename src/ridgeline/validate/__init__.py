"""Check against measurements."""
