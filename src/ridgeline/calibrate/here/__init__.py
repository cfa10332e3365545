"""Microbenchmarks of the machine at hand and the profile made of them; torch is imported when a benchmark runs."""
