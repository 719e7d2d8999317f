"""Ingest: what agents and ranks report, validated and filed by job."""
