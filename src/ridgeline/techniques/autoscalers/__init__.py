"""Autoscalers: when an instance of a fleet is started or stopped."""
