"""`c4bench bench`: what the data plane and the lab themselves cost and carry, so that a figure speaks of the fabric."""
