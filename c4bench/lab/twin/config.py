"""`config` and the programs that change a switch: they write CONFIG_DB, as SONiC's do, and the orchestrator acts."""

from c4bench.lab.twin.commands import Call, command


@command("config interface shutdown", "config interface startup")
def interface_state(call: Call) -> None:
    """`config interface shutdown|startup NAMES`."""
    call.require_root()
    state = "up" if call.name.endswith("startup") else "down"
    for port in call.ports(call.parse("NAMES")["NAMES"]):
        call.config.write("PORT", port.name, {"admin_status": state})
