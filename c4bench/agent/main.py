"""`python -m c4bench.agent.main --config agent.yml`: run the host daemon until SIGTERM."""

import argparse
import sys
from pathlib import Path

import c4bench.collective.ring_reader
import c4bench.verbs.probe  # noqa: F401  (loaded before the fork, so agent and spawner share the memory)
from c4bench import logs
from c4bench.agent import privileges
from c4bench.agent.config import load
from c4bench.agent.daemon import Daemon
from c4bench.agent.spawner import RankMain, start
from c4bench.errors import C4Error
from c4bench.foreign_text import one_line
from c4bench.model.agent import AgentConfig

_START_S = 30.0
_STOP_S = 10.0
_LONGEST_ERROR = 8000


def main(argv: list[str] | None = None) -> int:
    """Run the agent, or start or stop it in the background; returns the exit code."""
    parser = argparse.ArgumentParser(prog="c4bench-agent", description="c4bench's host daemon")
    parser.add_argument("--config", type=Path, default=Path("/etc/c4bench/agent.yml"))
    logs.add_options(parser, "info")
    background = parser.add_mutually_exclusive_group()
    background.add_argument("--detach", action="store_true", help="return once the agent serves in the background")
    background.add_argument("--stop", action="store_true", help="end the agent that --detach started, and its ranks")
    options = parser.parse_args(argv)
    try:
        config = load(options.config)
        privileges.drop(config)
        daemon = Daemon(Path(config.state))
        if options.stop:
            daemon.stop(_STOP_S)
        elif options.detach:
            _detach(config, daemon, options)
        else:
            return _serve(config, options)
    except C4Error as error:
        print(f"c4bench-agent: {one_line(error, _LONGEST_ERROR)}", file=sys.stderr)  # noqa: T201  (the command line)
        return error.exit_code
    return 0


def _detach(config: AgentConfig, daemon: Daemon, options: argparse.Namespace) -> None:
    """Start the agent in the background; print `started` if it was not running, which shows a playbook a change."""
    socket = Path(config.socket)
    if daemon.running and socket.exists():
        return
    if not daemon.running:
        socket.unlink(missing_ok=True)  # a socket left by a crash would look like a ready agent
    daemon.start(lambda: _serve(config, options), socket.exists, _START_S)
    print("started")  # noqa: T201


def _serve(config: AgentConfig, options: argparse.Namespace) -> int:
    def load() -> RankMain:
        # Ranks need numpy and pyverbs; the agent does not.
        import c4bench.verbs.device  # noqa: F401, PLC0415
        from c4bench.workload.rank import rank_main  # noqa: PLC0415

        return lambda job, rank: rank_main(job, rank, config)

    # The spawner is forked first, from a process without threads and without the modules of the event loop.
    spawner = start(load)
    logs.configure(options.log_level, options.log_format)  # after the fork, because a rank's stderr is its own log
    from c4bench.agent.serving import serve  # noqa: PLC0415  (ranks need no event loop, TLS or websockets)

    serve(config, spawner)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
