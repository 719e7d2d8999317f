"""Cost models of collectives, of training over slow links, and of faults: pure functions."""
