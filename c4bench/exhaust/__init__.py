"""Run a program again and again, each time with one event at another packet, and say what became of it.

`program` says what runs, `trials` which events at which packets, `outcome` what the ends of its ranks mean, `shrink`
looks for the smallest program that goes wrong too. `guest` runs trials inside a lab: `packets` has the kernel number
packets and act at one of them, `control_plane` is what ranks have of a master there. `harness` boots labs and keeps the
ledger.
"""
