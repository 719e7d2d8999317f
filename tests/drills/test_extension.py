"""A stranger's package and scenario in the lab: fault, driver, witness, program and detector by name."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "extension"


@pytest.fixture
def stranger(tmp_path):
    """The Python of an environment of a stranger's that has c4bench and the package."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = environment.glob("lib/python3*/site-packages")
    (site / "c4bench.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    shutil.copytree(SOURCE, tmp_path / "source", ignore=shutil.ignore_patterns("__pycache__"))
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", *words, str(tmp_path / "source")], check=True)
    return environment / "bin/python"


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_strangers_scenario_passes_in_the_lab(stranger, tmp_path):
    """In a project of its own, its fault is injected and witnessed, and its detector names what froze."""
    project = tmp_path / "project"
    shutil.copytree(SOURCE / "scenarios", project)
    (project / "pytest.ini").write_text("[pytest]\nc4_fixtures = true\n")
    words = ["--hosts=softroce", "--c4-topology=pair", "--c4-detector=acme", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [stranger, "-m", "pytest", *words],
        cwd=project,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "C4BENCH_"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
