"""Cost models of collectives and of training over slow links: pure functions."""
