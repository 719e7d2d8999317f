"""C4P, path planning for training traffic (C4, arXiv 2406.04594). Pure: no I/O, no clock."""
