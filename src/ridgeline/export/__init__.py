"""Plans to the configs of the programs that run them, and back: a field table and a file for each program."""
