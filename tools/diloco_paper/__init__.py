"""Table 4 of the Streaming DiLoCo paper, held against the simulation of `c4bench utilisation`."""
