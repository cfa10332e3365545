"""Ridgeline for agents: the questions as tools, facts as resources, over the Model Context Protocol."""
