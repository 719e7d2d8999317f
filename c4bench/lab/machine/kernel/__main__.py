"""`python -m c4bench.lab.machine.kernel`: set up the lab's kernel."""

from c4bench.lab.machine.kernel.build import main

main()
