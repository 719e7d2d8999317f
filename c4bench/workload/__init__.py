"""The programs that ranks run: measured collectives, and training jobs."""
