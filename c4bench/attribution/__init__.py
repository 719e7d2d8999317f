"""Which component explains observations: pure functions, shared by C4D and by ranks."""
