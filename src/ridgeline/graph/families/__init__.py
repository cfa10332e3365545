"""Families: small mappings from the keys of a config.json to the specs that `layers` builds from."""
