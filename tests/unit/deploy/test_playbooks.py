"""What is believed of an Ansible run, on playbooks of the tests' own."""

import os
import signal
from textwrap import dedent

import pytest
from night_cases import at_night

from c4bench.deploy import HostTally
from c4bench.deploy import playbook as run_playbook
from c4bench.errors import UnhealthyError
from c4bench.inventory import load

INVENTORY = """\
all:
  vars: {ansible_connection: local, ansible_python_interpreter: /usr/bin/python3}
  hosts: {a: {good: true}, b: {good: false}, far: {ansible_connection: ssh}}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "hosts.yml").write_text(INVENTORY)
    inventory = load(tmp_path / "hosts.yml")
    monkeypatch.setattr("c4bench.deploy.playbooks.resource", lambda _, name: tmp_path / name)

    def run(text, *hosts, **variables):
        (tmp_path / "trial.yml").write_text(dedent(text))
        return run_playbook("trial", inventory, hosts=hosts, variables=variables, directory=tmp_path / "runs")

    return run


def test_a_good_run_is_counted_by_host_and_leaves_the_process_as_it_was(run, tmp_path):
    """Tallies name exactly the hosts asked for; signal handlers are ours again; the environment is not on record.

    What an earlier run has left stays.
    """
    (tmp_path / "runs/trial-1").mkdir(parents=True)
    before = signal.getsignal(signal.SIGINT)
    text = """\
        - hosts: all
          gather_facts: false
          tasks:
            - ansible.builtin.assert: {that: word == "given"}
            - ansible.builtin.command: "true"
            - ansible.builtin.command: "false"
              when: good
    """
    result = run(text, "b", word="given")
    assert result.rc == 0
    assert result.hosts == {"b": HostTally(ok=2, changed=1, skipped=1)}
    assert 0 < result.elapsed_s < 60
    assert signal.getsignal(signal.SIGINT) is before
    assert not (tmp_path / "runs/trial-2/artifacts/run/command").exists()
    assert (tmp_path / "runs/trial-2/artifacts/run/stdout").exists()
    assert list((tmp_path / "runs/trial-1").iterdir()) == []


def test_a_failed_task_is_named_with_its_host_and_words(run):
    """One host's failure is the run's, though the other host did well."""
    text = """\
        - hosts: all
          gather_facts: false
          tasks:
            - name: Try it
              ansible.builtin.shell: "echo went wrong >&2; {{ 'true' if good else 'false' }}"
    """
    with pytest.raises(UnhealthyError, match=r"^b: task 'Try it': went wrong \(playbook trial; log: .*/stdout\)$"):
        run(text, "a", "b")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("said", "shown"),
    [("\x1b[31mred\a\n", "\\x1b[31mred\\x07 (playbook"), *at_night((" \n \n", "non-zero return code (playbook"))],
)
def test_what_a_failed_task_says_is_shown_in_printable_characters(run, tmp_path, said, shown):
    """Neither control characters nor empty lines of a host make anything but one printable line."""
    (tmp_path / "said").write_text(said)
    text = f"""\
        - hosts: all
          gather_facts: false
          tasks:
            - name: Try it
              ansible.builtin.shell: "cat {tmp_path}/said >&2; false"
    """
    with pytest.raises(UnhealthyError, match=r"^b: task 'Try it': ") as error:
        run(text, "b")
    assert shown in str(error.value)
    assert str(error.value).isprintable()


def test_a_host_that_ssh_does_not_reach_is_named_with_the_words_of_a_slow_ssh(run, tmp_path, monkeypatch):
    """Ansible gives up on an ssh that reads no more before that has said why; the user is told why all the same."""
    (ssh := tmp_path / "ssh").write_text("#!/bin/sh\nexec <&-; sleep 0.3; echo far: Connection refused >&2; exit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    text = """\
        - hosts: all
          gather_facts: false
          tasks:
            - name: Try it
              ansible.builtin.ping:
    """
    with pytest.raises(UnhealthyError, match=r"^far: task 'Try it': .*Connection refused \(playbook trial; log: "):
        run(text, "far")


@pytest.mark.nightly
def test_a_failure_that_the_playbook_ignores_is_none(run):
    """`ignore_errors` is the playbook's own word."""
    text = """\
        - hosts: all
          gather_facts: false
          tasks:
            - ansible.builtin.command: "false"
              ignore_errors: true
    """
    assert run(text, "a").hosts["a"].failed == 0


def test_a_host_that_took_no_part_is_an_error(run):
    """Ansible calls it a success when a pattern matches nothing; we do not."""
    with pytest.raises(UnhealthyError, match="did nothing on b"):
        run("- {hosts: a, gather_facts: false, tasks: [{ansible.builtin.command: 'true'}]}", "a", "b")


def test_a_playbook_that_cannot_be_read_says_why(run):
    """Ansible's own complaint is quoted."""
    with pytest.raises(UnhealthyError, match=r"playbook trial did not run .*ERROR"):
        run("- {hosts: all, task: []}", "a")


def test_without_ansible_the_error_says_what_to_install(run, monkeypatch):
    """A missing ansible-playbook is said before anything is tried."""
    monkeypatch.setattr("c4bench.deploy.playbooks.shutil.which", lambda *_, **__: None)
    with pytest.raises(UnhealthyError, match=r"pip install ansible-core ansible-runner"):
        run("[]", "a")
