"""Benchmarks of other tools, as text and as JSON: the figures, the hosts and NICs measured, and what was cut off."""
