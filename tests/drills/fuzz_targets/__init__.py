"""What is fuzzed, by room: each module has the `TARGETS` whose inputs that room consumes."""
