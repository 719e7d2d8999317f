"""What fares badly, and what explains it without a fault."""
