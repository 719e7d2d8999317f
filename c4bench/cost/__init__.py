"""Cost models that ranks choose by, shared by collectives and simulations: pure functions."""
