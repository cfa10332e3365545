"""Graph + Plan -> work on ranks: sharding, collectives, transfers."""
