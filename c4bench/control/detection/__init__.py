"""Detection: from agents' windows to diagnoses, and the probes that make diagnoses more exact."""
