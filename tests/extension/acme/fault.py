"""A fault: a file of the catalogue's form beside this one."""

from pathlib import Path

from c4bench import read_fault

FREEZE = read_fault(Path(__file__).with_name("acme.freeze.yml"))
