"""Steering: what is done about diagnoses, and about hosts out of service."""
