"""Time shifts: at which hours of a grid's day a run of known length stands still."""
