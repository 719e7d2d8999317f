"""Typed calls and notes between agents and master over mutually authenticated websockets; agents relay for ranks."""
