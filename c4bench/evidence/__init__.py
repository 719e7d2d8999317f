"""Readers of what other tools write about collectives: one module a format, within fixed bounds. docs/evidence.md."""
