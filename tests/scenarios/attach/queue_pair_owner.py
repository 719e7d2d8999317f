"""queue_pair_owner.py DEVICE: makes a queue pair and prints what this process and a child of it learn of its owner."""

import json
import os
import subprocess
import sys

from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import IBV_QPT_RC
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

from c4bench.attach.owners import owner

device = sys.argv[1]
context = Context(name=device)
domain, queue = PD(context), CQ(context, 10)
pair = QP(domain, QPInitAttr(qp_type=IBV_QPT_RC, scq=queue, rcq=queue, cap=QPCap()))
pair.to_init(QPAttr(port_num=1))
ask = f"from c4bench.attach.owners import owner; print(owner({device!r}, {pair.qp_num}))"
seen = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout
said = {"own": owner(device, pair.qp_num), "seen": int(seen), "none": owner(device, pair.qp_num + 1000)}
sys.stdout.write(json.dumps(said | {"pid": os.getpid()}) + "\n")
