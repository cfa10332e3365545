"""Remote KV: a part of a cache in the memory of other instances."""
