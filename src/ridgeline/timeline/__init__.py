"""The order of tasks on resources."""
