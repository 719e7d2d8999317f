"""Read an Ansible inventory into the types of `c4bench.model`."""

from c4bench.inventory.inventory import Access, Inventory, load, load_unless_lab, select

__all__ = ["Access", "Inventory", "load", "load_unless_lab", "select"]
