"""Checks of what hosts can do, before anything is installed or run on them."""
