"""Facts about machines and money: records, and the sole reader of `data/`."""
