"""Speculation: tokens that are drafted and verified in one step."""
