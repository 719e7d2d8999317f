"""Where a process computes that does nothing else is found out from outside, while it goes on computing."""

import os
import subprocess
import sys
import time

import pytest

from c4bench.lab.machine.spinning import computing_at

SECOND_S = 10.0  # a started interpreter computes before


@pytest.fixture
def spinning():
    """A child of ours that computes without end, in a library with a name."""
    program = "import hashlib\nwhile True: hashlib.pbkdf2_hmac('sha512', b'x', b'y', 10_000_000)"
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        yield child
        child.kill()


def places():
    """Where our children compute, as soon as one does so in libcrypto."""
    until = time.monotonic() + SECOND_S
    while time.monotonic() < until:
        found = computing_at(os.getpid())
        if any(place.startswith("libcrypto.so.") for place in found):
            return found
        time.sleep(0.05)
    return computing_at(os.getpid())


def test_the_library_and_the_place_in_it_are_named(spinning):
    """The library by its own name, and an offset within it; the process goes on."""
    (place,) = places()
    name, _, offset = place.partition("+")
    assert name.startswith("libcrypto.so.")
    assert 0 < int(offset, 16) < 1 << 24
    assert spinning.poll() is None
    assert computing_at(os.getpid())


def test_who_sleeps_is_not_listed():
    """A child that waits does not compute."""
    with subprocess.Popen(["sleep", "60"]) as child:
        time.sleep(0.2)
        assert computing_at(os.getpid()) == ()
        child.kill()


def test_a_process_that_is_gone_has_no_place():
    """Of a process that does not exist nothing is found, and nothing raised."""
    assert computing_at(1 << 22) == ()
