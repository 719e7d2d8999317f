"""Judges what other tools have written about a job: the same wait-for graph, on whatever is known. docs/evidence.md."""
