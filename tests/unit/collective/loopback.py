"""A transport within one process: writes are memory copies, completions wake an eventfd. For ranks that are threads."""

import ctypes
import os
import threading
from collections import deque

from c4bench.errors import C4Error
from c4bench.verbs.transport import Completion, PortEvent, Remote


class Network:
    """All QPs of a test; `dead` QPs answer a write with a transport error."""

    def __init__(self):
        self.lock = threading.Lock()
        self.connections = {}
        self.dead = set()

    def add(self, connection):
        with self.lock:
            number = len(self.connections) + 17
            self.connections[number] = connection
            return number


class LoopbackRegion:
    lkey = 1
    rkey = 2

    def __init__(self, port):
        self.port = port
        port.regions += 1

    def close(self):
        self.port.regions -= 1


class LoopbackPort:
    def __init__(self, network):
        self.network = network
        self.queue = deque()
        self.regions = 0
        self.pending = []
        self.closed = False
        self.completed, self.happened = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)

    gid = "::1"

    @property
    def event_fds(self):
        return self.completed, self.happened

    def register(self, _address, _length):
        return LoopbackRegion(self)

    def connection(self, _profile, sends, receives):
        return LoopbackConnection(self, sends, receives)

    def complete(self, completion):
        self.queue.append(completion)
        os.eventfd_write(self.completed, 1)

    def completions(self):
        try:
            os.eventfd_read(self.completed)
        except BlockingIOError:
            return []
        found = []
        while self.queue:
            found.append(self.queue.popleft())
        return found

    def happen(self, kind):
        self.pending.append(PortEvent("rxe0", kind))
        os.eventfd_write(self.happened, 1)

    def events(self):
        os.eventfd_read(self.happened)
        found, self.pending = self.pending, []
        return found

    def close(self):
        self.closed = True


class LoopbackConnection:
    source_port = 0xC001

    def __init__(self, port, sends, receives):
        self.port = port
        self.sends = sends
        self.depth = receives
        self.receives = 0
        self.qp_num = port.network.add(self)

    def connect(self, remote: Remote, source_port=0, receives=0):
        self.far = self.port.network.connections[remote.qp]
        self.source_port = source_port or self.source_port
        self.receives = receives

    def post_receive(self):
        self.receives += 1
        assert self.receives <= self.depth, "more receives than the queue holds"

    def write(self, local, remote, length, *, immediate, signaled):
        if self.far.qp_num in self.port.network.dead:
            self.port.complete(Completion(self.qp_num, 0, "RETRY_EXC_ERR", received=False, immediate=0))
            return
        with self.port.network.lock:
            if length:
                ctypes.memmove(remote[0], local[0], length)
            self.far.receives -= 1
            if self.far.receives < 0:
                raise C4Error("a message came where no receive was posted")
        self.far.port.complete(Completion(self.far.qp_num, 0, "", received=True, immediate=immediate))
        if signaled:
            self.port.complete(Completion(self.qp_num, 0, "", received=False, immediate=0))

    def move(self, source_port):
        self.source_port = source_port

    def close(self):
        pass
