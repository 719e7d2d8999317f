"""Benchmarks of other tools, as text and as JSON: what they measured, of whom, and what is missing of their output."""
