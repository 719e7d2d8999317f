"""What ranks do: measured collectives, and jobs that train."""
