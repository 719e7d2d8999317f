"""Everything that can be read of the files and folders that a user names, and what cannot."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from c4bench.evidence.formats import FORMATS, format_of
from c4bench.evidence.limits import MOST_FILES, UnreadableError, read_bytes
from c4bench.model.evidence import MemberEvidence, Problem, Reading, SourceFile

_KNOWN = ", ".join(dict.fromkeys(one.name for one in FORMATS))


def collect(paths: Iterable[Path]) -> Reading:
    """Read all files, those in folders too. What cannot be used is a problem and does not stop the rest."""
    readings: list[Reading] = []
    problems: list[Problem] = []
    seen: dict[bytes, Path] = {}
    for number, path in enumerate(_files(paths, problems)):
        if number == MOST_FILES:
            problems.append(Problem(str(path), f"more than {MOST_FILES} files; the rest is not read"))
            break
        try:
            data = read_bytes(path)
            first = seen.setdefault(hashlib.sha256(data).digest(), path)
            if first is not path:
                raise UnreadableError(f"it has the same bytes as {first} and is not used")
            readings.append(parse(data, path))
        except UnreadableError as error:
            problems.append(Problem(str(path), error.reason, error.place))
    return _one_job(readings, problems)


def parse(data: bytes, path: Path) -> Reading:
    """What the bytes of one file tell; its format is found out. Raises UnreadableError."""
    form = format_of(data, path.name)
    if form is None:
        raise UnreadableError(f"it is of no known format; known are {_KNOWN}")
    return form.read(data, str(path))


def _files(paths: Iterable[Path], problems: list[Problem]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(one for one in path.rglob("*") if not one.is_dir())
            if not found:
                problems.append(Problem(str(path), "the folder has no files"))
            yield from found
        elif path.exists():
            yield path
        else:
            problems.append(Problem(str(path), "there is no such file or folder"))


def _one_job(readings: list[Reading], problems: list[Problem]) -> Reading:
    """Join readings of one job; files of a job of another size are problems, unless they are the most."""
    sizes = Counter(size for one in readings if (size := _size(one)))
    size = sizes.most_common(1)[0][0] if sizes else 0
    members: list[MemberEvidence] = []
    sources: list[SourceFile] = []
    cannot: dict[str, None] = {}
    for one in readings:
        problems += one.problems
        if _size(one) not in {0, size}:
            reason = f"its job has {_size(one)} ranks, that of most files {size}; give each job a folder of its own"
            problems += [Problem(source.file, reason) for source in one.sources]
            continue
        members += one.members
        sources += one.sources
        cannot |= dict.fromkeys(one.cannot_tell)
    ranks = max((one.ranks for one in readings if _size(one) in {0, size}), default=0)
    benchmarks = tuple(result for one in readings for result in one.benchmarks)
    return Reading(tuple(members), tuple(sources), tuple(problems), tuple(cannot), ranks, benchmarks)


def _size(one: Reading) -> int:
    """How many ranks the job has, where a file says so by its communicator of all ranks."""
    return max((member.size for member in one.members if member.comm == "0"), default=0)
