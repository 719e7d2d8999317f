"""Bring the agent to hosts and take it away again, with plain Ansible. The only user of ansible_runner."""

from c4bench.deploy.playbooks import HostTally, PlaybookResult, playbook

__all__ = ["HostTally", "PlaybookResult", "playbook"]
