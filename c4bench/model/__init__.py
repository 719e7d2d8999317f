"""The nouns of the house, frozen. No I/O here, and nothing here knows a backend."""
