"""The master: hosts' agents connect to it, jobs run through it, C4D and C4P think in it."""
