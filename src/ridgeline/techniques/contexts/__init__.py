"""Contexts: how ranks that divide the tokens of a sequence attend to all of them."""
