"""Models that jobs train: one protocol, and those that follow it."""
