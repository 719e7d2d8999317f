"""Placement search: which path and source port each flow gets."""
