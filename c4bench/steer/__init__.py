"""The brain of steering: a diagnosis, a policy and the state of the fleet in, a decision out. No I/O, no clock."""
