"""Writes the parts of README.md and docs/ that runs and computations give."""
