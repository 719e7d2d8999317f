"""The master's pages for programs: health and metrics."""
