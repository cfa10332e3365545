"""Ridgeline: how a deep-learning workload will run, before anyone rents the machine."""
