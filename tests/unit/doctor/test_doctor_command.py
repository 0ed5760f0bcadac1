"""`orch doctor` on this machine, with and without faults made for the test. Each call shows several faults."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from orch_within import run_within
from waiting import PATIENCE_S

from orchestrator.cli.doctor_context import doctor_context
from orchestrator.host.checks import run_checks

ORCH = Path(sys.executable).with_name("orch")
Topics = dict[str, list[dict[str, Any]]]


class Doctor:
    """The command in an empty directory; as a child process if there are words `before` it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.lower().endswith("_proxy")
            and not name.startswith(("TF_", "KERAS_", "CUDA_", "VIRTUAL_ENV", "CONDA_PREFIX"))
        }

    def run(
        self, *words: str, before: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        environ = self.env | (env or {})
        if not before:
            traces = self.directory.parent / "doctor-within"
            code = run_within(("doctor", *words), self.directory, environ, traces)
            out, err = (traces.with_suffix(end).read_text() for end in (".out", ".err"))
            return subprocess.CompletedProcess(words, code, out, err)
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        command = [*before, str(ORCH), "doctor", *words]
        return subprocess.run(command, cwd=self.directory, env=environ, timeout=PATIENCE_S, **options)

    def document(self, *words: str, code: int = 0, **given: Any) -> tuple[dict[str, Any], Topics]:
        """The document of `--json`, and its findings by topic."""
        done = self.run("--json", *words, **given)
        assert (done.returncode, done.stderr) == (code, "")
        document = json.loads(done.stdout)
        assert document["healthy"] is (code == 0)
        topics: Topics = {}
        for finding in document["findings"]:
            topics.setdefault(finding["topic"], []).append(finding)
        return document, topics


@pytest.fixture
def doctor(tmp_path: Path) -> Iterator[Doctor]:
    here = tmp_path / "here"
    here.mkdir()
    yield Doctor(here)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def limited(*limits: str) -> tuple[str, ...]:
    """Words that start the command after them with limits of the shell."""
    return ("sh", "-c", f'{" ".join(f"ulimit {limit};" for limit in limits)} exec "$0" "$@"')


def test_columns_on_this_machine(doctor: Doctor) -> None:
    done = doctor.run("--workers", "2", before=limited("-Sn 200"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["ok", "python"]
    assert any(line.startswith("warning  open files") and "200 files" in line for line in lines)
    assert any(line.startswith("multi-worker-mirrored") and "with orch's fix" in line for line in lines)
    assert not (doctor.directory.parent / "state").exists()


def test_limits_of_the_shell_an_open_state_directory_and_a_proxy(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "open/orch").mkdir(parents=True)
    (tmp_path / "open/orch").chmod(0o777)
    (doctor.directory / "orch.toml").write_text("[roles.ps]\ncount = 498\n[roles.evaluator]\n")
    document, found = doctor.document(
        *("--workers", "500"),
        before=limited("-n 100", "-t 3600", "-f 999999"),
        env={"XDG_STATE_HOME": f"{tmp_path}/open", "https_proxy": "http://me:hunter2@proxy.example:3128"},
        code=1,
    )
    assert (document["workers"], document["tasks"]) == (500, 1000)
    tasks = "enough for 26 tasks, not 1,000 tasks (1 chief, 500 workers, 498 ps, 1 evaluator)"
    assert any(each["level"] == "problem" and tasks in each["text"] for each in found["open files"])
    assert found["memory"][0]["level"] == "problem"
    assert found["cpu time"][0]["level"] == found["file size"][0]["level"] == "warning"
    (state,) = found["state"]
    assert state["level"] == "problem" and f"chmod -R go-w {tmp_path}/open/orch" in state["fix"]
    assert "gRPC would use https_proxy" in str(found["proxies"]) and "hunter2" not in str(document)


def test_wrong_settings_are_reported_with_everything_else(doctor: Doctor, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    (doctor.directory / "orch.toml").write_text("worker = 2\n")
    done = doctor.run("-q", "--color", "always", env={"XDG_STATE_HOME": str(in_the_way)})
    assert done.returncode == 1
    assert 'unknown key "worker"; did you mean "workers"?' in done.stdout
    assert f"{in_the_way} is not a directory" in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("\x1b[1;31mproblem")
    levels = {re.sub(r"\x1b\[[\d;]*m", "", line).split(" ")[0] for line in lines}
    assert not levels & {"ok", "note"}, "-q"


def test_settings_and_python_of_the_command(doctor: Doctor, tmp_path: Path) -> None:
    """The active environment has no TensorFlow."""
    bare = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=PATIENCE_S)
    python, active = str(bare / "bin/python"), {"VIRTUAL_ENV": str(bare)}
    (doctor.directory / "train.py").write_text("import tensorflow as tf\nmodel.fit(x)\n")
    (doctor.directory / "orch.toml").write_text("workers = 3\ncommand = 'train.py'\n")
    document, found = doctor.document(env=active, code=1)
    assert (document["workers"], document["command"]) == (3, "train.py")
    assert found["python"][0]["where"] == python
    assert found["tensorflow"][0]["fix"].startswith(f"{python} -m pip install tensorflow")
    (cluster,) = found["cluster"]
    assert cluster["level"] == "warning"
    assert "3 workers would train 3 independent copies" in cluster["text"]
    assert cluster["fix"] == "create a MultiWorkerMirroredStrategy, or use --workers 1"

    def of_tensorflow(*words: str) -> list[str]:
        context, _ = doctor_context("2", words, doctor.env | active, doctor.directory)
        return [each.level.value for each in run_checks(context) if each.topic in ("tensorflow", "keras")]

    assert of_tensorflow(python, "-m", "json.tool") == ["note"]
    assert of_tensorflow(python, "-m", "installed.train") == ["warning"]
    document, found = doctor.document("--", "true", env=active)
    assert document["strategies"] == [] and not {"tensorflow", "keras"} & set(found)
    missing, _ = doctor_context(None, ("nosuch.py",), doctor.env, doctor.directory)
    assert (missing.settings_error or "").startswith("script not found: nosuch.py")


def test_many_hosts_under_a_low_soft_limit_on_open_files(doctor: Doctor) -> None:
    hosts = ",".join(f"n{number}" for number in range(40))
    words = ("--hosts", hosts, "--ssh-command", "false")
    found = doctor.document(*words, before=limited("-Sn 40"), code=1)[1]["host"]
    assert len(found) == 40 and all("its login shell ended with" in each["text"] for each in found), found


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a network namespace")
def test_loopback_interface_that_is_down(doctor: Doctor) -> None:
    """Binding to it succeeds."""
    apart = ("unshare", "-n")
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("a new network namespace is not allowed here")
    found = doctor.document(before=apart, code=1)[1]
    assert any(each["level"] == "problem" and "127.0.0.1" in each["text"] for each in found["ports"])


def test_wrong_options_are_a_usage_error(doctor: Doctor) -> None:
    for words in (("--workers", "0"), ("--workers", "x"), ("--nope",)):
        done = doctor.run(*words)
        assert done.returncode == 2 and done.stdout == "" and words[0] in done.stderr, words


def test_doctor_does_not_import_tensorflow() -> None:
    program = (
        "import os, sys; from pathlib import Path; from orchestrator.cli.doctor_context import doctor_context;"
        "from orchestrator.host.checks import run_checks;"
        "run_checks(doctor_context('2', (), os.environ, Path.cwd())[0]); print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    loaded = set(done.stdout.split())
    assert "orchestrator.host.checks.software" in loaded
    assert not loaded & {"tensorflow", "keras", "tf_keras", "numpy"}
