"""Jobs of programs that c4bench did not write: what they tell about themselves, and how."""
