"""Start a run: make its directory and write its provenance."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from c4bench.errors import UsageError
from c4bench.record.provenance import collect, differences
from c4bench.record.run import RunDirectory

ROOT = Path("reports/runs")  # in the directory that a run is started from


def begin(
    path: Path | None,
    name: str,
    *,
    command: Sequence[str],
    seed: int,
    backend: str,
    topology: str,
    clock: str,
    inventory_digest: str = "",
    kernel: str = "",
    kernel_build: str = "",
    lab_mode: str = "",
    root: Path = ROOT,
    resume: bool = False,
) -> RunDirectory:
    """Return the run directory `path`, or a new one under `root`; write its provenance if it has none.

    The run holds the directory as long as the returned object lives. Raises UsageError if another run holds it, if the
    run in `path` is finished and this is not to `resume` it, or if that was started in another environment: figures of
    two runs or two environments do not mix.
    """
    if path is None:
        run = RunDirectory.create(root, name)
    else:
        path.mkdir(parents=True, exist_ok=True)
        run = RunDirectory(path)
    run.hold()
    refuse_finished(run, resume=resume)
    provenance = collect(
        name=run.path.name,
        started_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        command=command,
        seed=seed,
        backend=backend,
        topology=topology,
        clock=clock,
        inventory_digest=inventory_digest,
        kernel=kernel,
        kernel_build=kernel_build,
        lab_mode=lab_mode,
    )
    if not run.started:
        run.write_provenance(provenance)
    elif changed := differences(run.provenance().environment, provenance.environment):
        raise UsageError(f"{run.path} was started in another environment ({changed}); give another run directory")
    return run


def refuse_finished(run: RunDirectory, *, resume: bool) -> None:
    """Raises UsageError for a finished run, which stays as it is, unless what it has not run is to be added."""
    if run.finished and not resume:
        raise UsageError(
            f"{run.path} holds a finished run, which stays as it is; leave out --c4-run-dir for a new run, "
            "or add --c4-resume to run what this one has not"
        )
