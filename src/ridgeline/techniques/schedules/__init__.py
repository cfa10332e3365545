"""Pipeline schedules: in which order stages run forwards and backwards."""
