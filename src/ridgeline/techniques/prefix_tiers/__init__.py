"""Prefix tiers: where prefix blocks go that give way on the device."""
