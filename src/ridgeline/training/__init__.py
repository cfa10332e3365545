"""Pipeline schedules, step structure, goodput."""
