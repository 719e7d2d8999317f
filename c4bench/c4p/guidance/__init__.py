"""Live flows, and the source ports and weights that plans give them."""
