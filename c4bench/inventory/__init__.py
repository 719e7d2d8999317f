"""The user's Ansible inventory, read into the house's own nouns."""

from c4bench.inventory.inventory import Access, Inventory, load
from c4bench.inventory.patterns import select

__all__ = ["Access", "Inventory", "load", "select"]
