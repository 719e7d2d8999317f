"""Stragglers: ranks the others wait for, in every operation or now and then."""
