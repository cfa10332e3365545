"""Routers: which instance takes a request."""
