"""What a stranger adds to c4bench."""
