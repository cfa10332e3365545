"""Judges a person's kernel against its reference, as `measure --kernel` asks: answers compared, watched and timed."""
