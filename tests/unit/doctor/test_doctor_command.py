"""`orch doctor` on this machine, with and without faults made for the test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from orch_within import run_within
from waiting import PATIENCE_S

ORCH = Path(sys.executable).with_name("orch")


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
            return self._within(words, environ)
        return subprocess.run(
            [*before, str(ORCH), "doctor", *words],
            cwd=self.directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def _within(self, words: tuple[str, ...], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        traces = self.directory.parent / "doctor-within"
        code = run_within(("doctor", *words), self.directory, environ, traces)
        out, err = (traces.with_suffix(end).read_text() for end in (".out", ".err"))
        return subprocess.CompletedProcess(words, code, out, err)

    def findings(
        self, *words: str, before: tuple[str, ...] = (), env: dict[str, str] | None = None, code: int = 0
    ) -> dict[str, list[dict[str, Any]]]:
        """The findings of `--json`, by topic."""
        done = self.run("--json", *words, before=before, env=env)
        assert (done.returncode, done.stderr) == (code, "")
        document = json.loads(done.stdout)
        assert document["healthy"] is (code == 0)
        topics: dict[str, list[dict[str, Any]]] = {}
        for finding in document["findings"]:
            topics.setdefault(finding["topic"], []).append(finding)
        return topics


@pytest.fixture
def doctor(tmp_path: Path) -> Iterator[Doctor]:
    here = tmp_path / "here"
    here.mkdir()
    yield Doctor(here)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def limited(*limit: str) -> tuple[str, ...]:
    """Words that start the command after them with a limit of the shell."""
    return ("sh", "-c", f'ulimit {" ".join(limit)}; exec "$0" "$@"')


def test_columns_on_this_machine(doctor: Doctor) -> None:
    done = doctor.run("--workers", "2", before=("env",))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["ok", "python"]
    assert any(line.startswith("multi-worker-mirrored") and "with orch's fix" in line for line in lines)
    assert not (doctor.directory.parent / "state").exists()


def test_colour_option(doctor: Doctor) -> None:
    assert "\x1b[32mok" in doctor.run("--color", "always").stdout


def test_quiet_shows_no_ok_and_no_notes(doctor: Doctor) -> None:
    assert not any(line.startswith(("ok", "note")) for line in doctor.run("-q").stdout.splitlines())


def test_more_workers_than_fit(doctor: Doctor) -> None:
    found = doctor.findings("--workers", "9000", code=1)
    assert found["memory"][0]["level"] == "problem"
    assert "--workers " in found["memory"][0]["fix"]
    assert "at most 4,000 tasks, not 9,000" in found["settings"][0]["text"]
    (doctor.directory / "orch.toml").write_text("[roles.ps]\ncount = 498\n[roles.evaluator]\n")
    found = doctor.findings("--workers", "500", before=limited("-n", "100"), code=1)
    text = "enough for 26 tasks, not 1,000 tasks (1 chief, 500 workers, 498 ps, 1 evaluator)"
    assert any(text in f["text"] for f in found["open files"])


def test_script_whose_workers_would_train_separate_models(doctor: Doctor) -> None:
    (doctor.directory / "train.py").write_text("import tensorflow as tf\nmodel.fit(x)\n")
    (found,) = doctor.findings("--workers", "2", "--", "train.py")["cluster"]
    assert found["level"] == "warning" and "2 workers would train 2 independent copies" in found["text"]
    assert found["fix"] == "create a MultiWorkerMirroredStrategy, or use --workers 1"


def test_few_open_files(doctor: Doctor) -> None:
    (soft,) = (f for f in doctor.findings(before=limited("-Sn", "200"))["open files"] if f["fix"])
    assert soft["level"] == "warning" and "200 files" in soft["text"]
    found = doctor.findings("--workers", "50", before=limited("-n", "100"), code=1)
    assert any(f["level"] == "problem" and "enough for 26 tasks" in f["text"] for f in found["open files"])


def test_many_hosts_under_a_low_soft_limit_on_open_files(doctor: Doctor) -> None:
    hosts = ",".join(f"n{number}" for number in range(40))
    words = ("--hosts", hosts, "--ssh-command", "false")
    found = doctor.findings(*words, before=limited("-Sn", "40"), code=1)["host"]
    assert len(found) == 40 and all("its login shell ended with" in each["text"] for each in found), found


def test_other_limits_of_the_shell(doctor: Doctor) -> None:
    found = doctor.findings(before=limited("-t", "3600;", "ulimit", "-f", "999999"))
    assert found["cpu time"][0]["level"] == found["file size"][0]["level"] == "warning"


def test_state_directory_that_cannot_be_written(doctor: Doctor, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    (found,) = doctor.findings(env={"XDG_STATE_HOME": str(in_the_way)}, code=1)["state"]
    assert found["level"] == "problem" and "is not a directory" in found["text"]


def test_state_directory_that_others_can_write(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "open/orch").mkdir(parents=True)
    (tmp_path / "open/orch").chmod(0o777)
    (found,) = doctor.findings(env={"XDG_STATE_HOME": f"{tmp_path}/open"}, code=1)["state"]
    assert found["level"] == "problem" and f"chmod -R go-w {tmp_path}/open/orch" in found["fix"]


def test_proxy_is_shown_without_its_password(doctor: Doctor) -> None:
    done = doctor.run(env={"https_proxy": "http://me:hunter2@proxy.example:3128"})
    assert "gRPC would use https_proxy" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


def test_wrong_orch_toml_is_reported_with_everything_else(doctor: Doctor) -> None:
    (doctor.directory / "orch.toml").write_text("worker = 2\n")
    found = doctor.findings(code=1)
    assert "workers" in found["settings"][0]["text"] and found["python"][0]["level"] == "ok"


def test_settings_of_orch_toml_count(doctor: Doctor) -> None:
    (doctor.directory / "train.py").write_text("import tensorflow\n")
    (doctor.directory / "orch.toml").write_text("workers = 3\ncommand = 'train.py'\n")
    document = json.loads(doctor.run("--json").stdout)
    assert (document["workers"], document["command"]) == (3, "train.py")


def test_missing_script(doctor: Doctor) -> None:
    (found,) = doctor.findings("--", "nosuch.py", code=1)["settings"]
    assert "script not found: nosuch.py" in found["text"]


def test_interpreter_of_the_command_is_asked(doctor: Doctor, tmp_path: Path) -> None:
    bare = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=PATIENCE_S)
    (doctor.directory / "train.py").write_text("import tensorflow\n")
    python = str(bare / "bin/python")
    found = doctor.findings("--", python, "train.py", code=1)
    assert found["python"][0]["where"] == python
    assert found["tensorflow"][0]["fix"].startswith(f"{python} -m pip install tensorflow")
    for module, level in (("json.tool", "note"), ("installed.train", "warning")):
        assert doctor.findings("--", python, "-m", module)["tensorflow"][0]["level"] == level
    active = doctor.findings(env={"VIRTUAL_ENV": str(bare)}, code=1)
    assert active["python"][0]["where"] == python


def test_program_that_is_not_python_needs_no_tensorflow(doctor: Doctor, tmp_path: Path) -> None:
    bare = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=PATIENCE_S)
    done = doctor.run("--json", "--", "true", env={"VIRTUAL_ENV": str(bare)})
    document = json.loads(done.stdout)
    assert (done.returncode, document["strategies"]) == (0, [])
    assert not {"tensorflow", "keras"} & {finding["topic"] for finding in document["findings"]}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a network namespace")
def test_loopback_interface_that_is_down(doctor: Doctor) -> None:
    """Binding to it succeeds."""
    apart = ("unshare", "-n")
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("a new network namespace is not allowed here")
    found = doctor.findings(before=apart, code=1)
    assert any(f["level"] == "problem" and "127.0.0.1" in f["text"] for f in found["ports"])


@pytest.mark.parametrize("words", [("--workers", "0"), ("--workers", "x"), ("--nope",)])
def test_wrong_options_are_a_usage_error(doctor: Doctor, words: tuple[str, ...]) -> None:
    done = doctor.run(*words)
    assert done.returncode == 2 and done.stdout == ""
    assert words[0] in done.stderr


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
