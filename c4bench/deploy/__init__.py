"""Install and remove agents with Ansible. The only importer of ansible_runner."""

from c4bench.deploy.playbooks import HostTally, PlaybookResult, playbook

__all__ = ["HostTally", "PlaybookResult", "playbook"]
