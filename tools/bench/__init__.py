"""Measures what the programs of the project cost: master, detector, planner, agent, bus and a large inventory."""
