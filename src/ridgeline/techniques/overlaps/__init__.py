"""Overlaps: iterations cut in two, whose kernels run side by side."""
