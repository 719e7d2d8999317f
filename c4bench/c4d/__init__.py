"""C4D, the detector (arXiv 2406.04594): telemetry and times in, diagnoses out. No I/O and no clock of its own."""
