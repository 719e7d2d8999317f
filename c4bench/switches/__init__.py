"""Operating systems of switches: what they print as facts, and what changes them, as pure functions.

One module for each system is the only place that knows its commands and their output. Nothing here runs a command:
`c4bench.inject` does, over SSH, from the controller.
"""
