"""Damaged files for the readers of other tools' formats, and what no reader may do with them."""

import gzip
import io
import pickle
import random
import tarfile
from pathlib import Path

from c4bench.evidence.collect import parse
from c4bench.evidence.judging.judge import judge
from c4bench.evidence.limits import UnreadableError, gunzip
from c4bench.evidence.write import WRITERS, history
from c4bench.model.step import StepOp
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

HERE = Path(__file__).parent
# NCCL's user guide, "RAS", monitoring mode.
EVENT_TEXT = b"[2025-12-19 13:07:07] PEER_DEAD: Process 1524345 on node 172.16.64.245 managing GPU 1 \n"
EVENT_JSON = b"""{
  "timestamp": "2025-12-19 13:07:07",
  "group": "LIFECYCLE",
  "event": "PEER_DEAD",
  "peer": {
    "host": "172.16.64.245",
    "pid": 1524345,
    "cuda_devs": [1],
    "nvml_devs": [1]
  },
  "details": ""
}
"""
RAS_TEXT = (HERE / "ras.txt").read_bytes()


class Canary:
    """A pickle of this writes to `path` when `pickle` loads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.write_bytes, (self.path, b"escaped"))


def originals():
    """(name, bytes) of sound files: real ones of PyTorch and NCCL, and what we write of a simulated job."""
    files = []
    for archive, wanted in ((min(HERE.glob("torch-*.tar.xz")), "/hang_4/rank_"),
                            (min(HERE.glob("nccl-*.tar.xz")), "/killed/ras_0s.")):  # fmt: skip
        with tarfile.open(archive) as packed:
            real = [one for one in packed if one.isfile() and wanted in one.name]
            files += [(Path(one.name).name, packed.extractfile(one).read()) for one in real]
    job = SimJob(4, (StepOp("all_reduce", 1 << 20, 0.02),), seed=1, window_s=0.5)
    fault = SimFault(SimFaultKind.HUNG, 2, 0.6)
    written = history(window for tick in simulate(job, [fault], 1.0) for window in tick.windows)
    for writer in WRITERS.values():
        files += list(writer(written))
    files += [("ras.txt", RAS_TEXT), ("events.txt", EVENT_TEXT * 3), ("events.json", EVENT_JSON * 3)]
    printed = HERE / "cases" / "13-flight-recorder"
    files += [(path.name, path.read_bytes()) for path in sorted(printed.rglob("*")) if path.is_file()]
    return [*files, ("rank_0.pt.trace.json.gz", gzip.compress(dict(files)["rank_0.pt.trace.json"], mtime=0))]


def mutated(data, rng, canary):
    """`data` after some damage: bytes changed, cut, repeated or put in, among them pickles that run code."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 30))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at:]
            case 2:
                del data[at : at + rng.randrange(1, 40)]
            case 3:
                data[at:at] = data[at : at + rng.randrange(1, 200)]
            case 4:
                data[at:at] = rng.choice(SNIPPETS)
            case 5:
                data[at:at] = pickle.dumps(Canary(canary), rng.choice((0, 2, 4)))
            case _:
                data[at:at] = rng.randbytes(rng.randrange(1, 20))
        if not data:
            break
    return bytes(data)


# Huge numbers and lengths, deep nesting, memo numbers far beyond the end, opcodes that name things.
SNIPPETS = (
    b"9" * 5000, b"-1", b"1e999", b"null", b"[" * 3000, b'{"a":' * 3000, b'"\\ud800"', b"\xff\xfe",
    b"r\xff\xff\xff\xff", b"j\xff\xff\xff\x7f", b"X\xff\xff\xff\x7f", b"\x8d" + b"\xff" * 8, b"\x8a\xff", b"](" * 3000,
    b"cos\nsystem\n", b"(S'true'\ntR.", b"\x93", b"\x82\x01", b"\x96" + b"\xff" * 8, b"}(KKu", b"b", b".",
)  # fmt: skip


def escapes(count, folder, seed):
    """Of so many damaged files, those with which a reader or the judgement did something else than to answer."""
    rng, files = random.Random(seed), originals()
    canary = folder / "canary"
    found = []
    for number in range(count):
        name, data = files[number % len(files)]
        broken = mutated(data, rng, canary)
        try:
            judge(parse(loaded(broken), Path(name)))
        except UnreadableError:
            pass
        except Exception as error:
            found.append((number, name, repr(error)))
        if canary.exists():
            canary.unlink()
            found.append((number, name, "it ran code"))
    return found


def loaded(data):
    """The bytes as the loader of files gives them."""
    if not data:
        raise UnreadableError("it is empty")
    return gunzip(data) if data.startswith(b"\x1f\x8b") else data


def bomb(size):
    """Gzip data that is `size` bytes when decompressed, made in small memory."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as file:
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return out.getvalue()
