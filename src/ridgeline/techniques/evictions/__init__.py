"""Evictions: what stays of a context's keys and values on the device."""
