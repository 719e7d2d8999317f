"""`c4bench plan FLOWS.yml --atlas ATLAS.json [--conditions CONDITIONS.yml]`: run C4P's planner offline."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.evaluation import few_qps, gaps, least_worst_load, no_route, shortages
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.path_knowledge import BY_QP
from c4bench.c4p.placement.planner import ECMP, Planner
from c4bench.c4p.shares import assign_idle_qps
from c4bench.cli import Commands
from c4bench.cli.shared import print_json
from c4bench.decoding import DecodingError, from_yaml
from c4bench.errors import UsageError
from c4bench.files import read_bounded
from c4bench.foreign_text import one_line
from c4bench.model.fabric import DEST_QP, Flow
from c4bench.model.fabric import Path as FabricPath

T = TypeVar("T")
# A thousand times the fastest link there is.
_DEMAND_AT_MOST_BPS = 1e15


class _Placed(msgspec.Struct, frozen=True):
    """A placed flow: its path, its NICs, and its share of its connection's load."""

    flow: str
    path: FabricPath
    source: str
    destination: str
    share: float


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("plan", help="place flows on the paths of an atlas")
    parser.add_argument(
        "flows", type=Path, metavar="FLOWS.yml", help="a list of {id, job, source, destination, demand_bps}"
    )
    parser.add_argument("--atlas", type=Path, required=True, metavar="FILE", help="atlas.json of a run")
    parser.add_argument(
        "--conditions",
        type=Path,
        metavar="CONDITIONS.yml",
        help="{capacities, background_bps: bit/s by hop; avoid: [hop]; shares: by job; bonds: {name: [NIC, ...]}}",
    )
    parser.add_argument("--exact", action="store_true", help="compare with the proven optimum (needs highspy)")
    parser.add_argument("--json", action="store_true", help="print the placed flows as JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    flows = _read(arguments.flows, tuple[Flow, ...])
    for flow in flows:
        if not 0 <= flow.demand_bps <= _DEMAND_AT_MOST_BPS:
            raise UsageError(f"{arguments.flows}: {flow.id}: demand_bps {flow.demand_bps:g} is no rate of a link")
    conditions = _read(arguments.conditions, Conditions) if arguments.conditions else Conditions()
    atlas = Atlas.from_json(read_bounded(arguments.atlas))
    planner = Planner(atlas, conditions)
    planner.add(flows)
    placed = _placed(planner, flows)
    if arguments.json:
        print_json(msgspec.json.encode(placed))
    else:
        sys.stdout.writelines(_format_placed(flow) + "\n" for flow in placed)
    remarks = _remarks(planner, placed, atlas, conditions)
    if arguments.exact:
        remarks.append(_comparison(planner, flows, atlas, conditions))
    sys.stderr.writelines(f"{one_line(remark)}\n" for remark in remarks)
    return 0


def _placed(planner: Planner, flows: Sequence[Flow]) -> list[_Placed]:
    """The placed flows in the order of the input; flows without a route are left to ECMP."""
    parts = assign_idle_qps(planner.divide(), flows)
    assignments = {assignment.flow: assignment for assignment in planner.assignments()}
    return [
        _Placed(flow.id, assignment.path, assignment.source, assignment.destination, round(part.share, 6))
        if (part := parts.get(flow.id)) and (assignment := assignments[part.leader])
        else _Placed(flow.id, ECMP, flow.source, flow.destination, 0.0)
        for flow in flows
    ]


def _format_placed(flow: _Placed) -> str:
    via = f"via {' '.join(flow.path.hops) or 'ECMP'}"
    return f"{flow.flow}: {flow.source} > {flow.destination} port {flow.path.source_port} share {flow.share:.3g} {via}"


def _remarks(planner: Planner, placed: Sequence[_Placed], atlas: Atlas, conditions: Conditions) -> list[str]:
    """Flows without a route, links without enough capacity, too few QPs, and paths that the atlas does not reach."""
    flows = {flow.id: flow for flow in planner.flows}
    remarks = [no_route(flows[flow.flow], atlas, conditions) for flow in placed if flow.path == ECMP]
    if conditions.capacities is not None:
        remarks += shortages(_bps(planner.loads(), conditions.capacities), conditions.capacities)
        remarks += few_qps(planner.flows, atlas, conditions.capacities)
    remarks += [str(gap) for gap in gaps(atlas)]
    return [*remarks, BY_QP] if atlas.hash == DEST_QP else remarks


def _bps(loads: Mapping[str, float], capacities: Mapping[str, float]) -> dict[str, float]:
    return {hop: load * capacities[hop] for hop, load in loads.items() if load != float("inf")}


def _comparison(planner: Planner, flows: Sequence[Flow], atlas: Atlas, conditions: Conditions) -> str:
    worst = max((load for load in planner.loads().values() if load != float("inf")), default=0.0)
    least = least_worst_load(flows, atlas, conditions, divisible=True)
    return f"worst link load {worst:.6g}; no plan has less than {least:.6g}"


def _read(path: Path, kind: type[T]) -> T:
    try:
        return from_yaml(read_bounded(path), kind)
    except DecodingError as error:
        raise UsageError(f"{path}: {error}") from None
