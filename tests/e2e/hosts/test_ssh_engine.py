"""The ssh engine with a real ssh: what it connects to, and what it says when it cannot."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from testbed import Testbed

# Runs on n0: connects, sends "question", closes, and says what came back.
_CONNECT = """
import json, socket, sys, tempfile
from orchestrator.engines.ssh import SshEngine
for line in sys.stdin:
    case = json.loads(line)
    engine = SshEngine(case.get("command", ["ssh"]), connect_timeout_s=case.get("timeout_s", 60))
    with tempfile.TemporaryFile() as errors:
        connection = engine.connect(case["host"], [case["words"]], errors.fileno())
        answer = b""
        try:
            connection.stream.sendall(b"question")
            connection.stream.shutdown(socket.SHUT_WR)
            while data := connection.stream.recv(1000):
                answer += data
        except OSError:
            pass  # ssh has exited and left the question unread
        connection.close()
        connection.process.wait()
        errors.seek(0)
        said = errors.read().decode(), connection.messages()
        connection.kill()
    code = connection.process.returncode
    print(json.dumps({"answer": answer.decode(), "code": code, "why": engine.explain(case["host"], code, *said)}))
"""


def _connect(machines: Testbed, *cases: dict[str, Any]) -> list[dict[str, Any]]:
    lines = "".join(f"{json.dumps({'words': 'cat', **case})}\n" for case in cases)
    done = machines["n0"].run(
        sys.executable, "-c", _CONNECT, stdin=lines.encode(), cwd=Path(__file__).parents[3]
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _keys(machines: Testbed) -> Path:
    return machines["n0"].home / ".ssh"


def test_the_host_s_shell_gets_the_text_and_bytes_pass_in_both_directions(machines: Testbed) -> None:
    (done,) = _connect(
        machines, {"host": "root@n1", "words": "printf '%s|' 'two  words' \\* $((1 + 1)); cat"}
    )
    assert done["answer"] == "two  words|*|2|question"
    assert done["code"] == 0


def test_the_user_s_own_options_are_used(machines: Testbed) -> None:
    config = machines.shared / "other config"
    config.write_text(
        f"Host elsewhere\n HostName n2\n HostKeyAlias n2\n IdentityFile {machines.directory}/home/.ssh/id\n"
    )
    (done,) = _connect(
        machines, {"host": "elsewhere", "words": "hostname", "command": ["ssh", "-F", str(config)]}
    )
    assert done["answer"] == "n2\n"


def test_hosts_that_cannot_be_reached_are_told_apart(machines: Testbed) -> None:
    machines.cut("n3")
    unknown, refused, silent, no_python = _connect(
        machines,
        {"host": "nowhere"},
        {"host": "n0"},
        {"host": "n3", "timeout_s": 1},
        {"host": "n1", "words": "exec /nowhere/python3"},
    )
    assert unknown["why"].startswith("nowhere: ssh knows no host nowhere; correct the name")
    assert refused["why"].startswith("n0: n0 is there, but no ssh server listens on its port 22;")
    assert silent["why"].startswith("n3: n3 does not answer on port 22;")
    assert no_python["why"].startswith("n1: its Python was not found (")


def test_host_keys_count_and_no_question_is_asked(machines: Testbed) -> None:
    known = _keys(machines) / "known_hosts"
    text = known.read_text()
    first, *others = text.splitlines(keepends=True)
    key = others[1].split()[1:]
    try:
        known.write_text(f"{first}n1 {' '.join(key)}\n")
        changed, unknown = _connect(machines, {"host": "n1"}, {"host": "n2"})
    finally:
        known.write_text(text)
    assert (
        f"n1: its host key is not the one in {machines.directory}/home/.ssh/known_hosts:2" in changed["why"]
    )
    assert unknown["why"].startswith("n2: its host key is not known here; run `ssh n2` once")
    assert known.read_text() == text


def test_a_password_prompt_is_an_answer(machines: Testbed) -> None:
    (done,) = _connect(machines, {"host": "n1", "command": ["ssh", "-oPubkeyAuthentication=no"]})
    assert done["why"].startswith("n1: it does not let you in without a password (publickey,password)")


def test_a_login_file_that_writes_does_no_harm(machines: Testbed) -> None:
    noisy = machines["n1"].home / ".bashrc"
    noisy.write_text("echo welcome; echo noise >&2\n")
    try:
        (done,) = _connect(machines, {"host": "n1"})
    finally:
        noisy.unlink()
    assert done["answer"].endswith("question")


def test_a_login_file_that_ends_the_shell_is_named(machines: Testbed) -> None:
    exits = machines["n1"].home / ".bashrc"
    exits.write_text("echo no entry >&2; exit 3\n")
    try:
        (done,) = _connect(machines, {"host": "n1"})
    finally:
        exits.unlink()
    assert done["why"].startswith(
        "n1: its login shell ended with exit code 3 before Python started and wrote: no entry; run `ssh n1 true`"
    )


def test_no_shared_connection_is_left(machines: Testbed) -> None:
    """With `ControlMaster auto`, ssh would stay behind as the master of later connections."""
    config = machines.shared / "masters"
    home = machines.directory / "home"
    config.write_text(
        f"Host *\n IdentityFile {home}/.ssh/id\n ControlMaster auto\n ControlPersist yes\n"
        f" ControlPath {home}/master-%C\n"
    )
    (done,) = _connect(machines, {"host": "n1", "command": ["ssh", "-F", str(config)]})
    assert done["answer"] == "question"
    assert machines["n0"].command_lines() == []


def test_a_host_cannot_imitate_the_messages_of_ssh(machines: Testbed) -> None:
    exits = machines["n1"].home / ".bashrc"
    exits.write_text("echo 'ssh: Could not resolve hostname n1: Name or service not known' >&2; exit 255\n")
    commands = (["ssh"], ["ssh", "-v"], ["ssh", "-oLogLevel=QUIET"])
    try:
        plain, verbose, quiet = _connect(machines, *({"host": "n1", "command": each} for each in commands))
    finally:
        exits.unlink()
    wrote = "n1: its login shell ended with exit code 255 before Python started and wrote: ssh: Could not"
    assert plain["why"].startswith(wrote) and quiet["why"].startswith(wrote)
    assert verbose["why"].startswith("n1: ssh failed: debug1: Exit status 255")


def test_messages_of_ssh_are_found_wherever_they_are(machines: Testbed) -> None:
    log = machines.shared / "own log"
    jump, option, own, verbose, broken = _connect(
        machines,
        {"host": "n1", "command": ["ssh", "-oProxyJump=nowhere"]},
        {"host": "n1", "command": ["ssh", "-oNoSuch=1"]},
        {"host": "n0", "command": ["ssh", "-E", str(log)]},
        {"host": "n0", "command": ["ssh", "-vvv"]},
        {"host": "n1", "words": "kill -9 $PPID; sleep 1"},
    )
    assert jump["why"].startswith("n1: ssh knows no host nowhere;")
    assert option["why"].startswith("n1: ssh refuses its configuration: command-line: line 0: Bad conf")
    # The user's own log is used, and orch does not read it.
    assert own["why"].startswith("n0: ssh failed and gave no reason")
    assert "Connection refused" in log.read_text()
    assert verbose["why"].startswith("n0: n0 is there, but no ssh server listens on its port 22;")
    # When sshd is killed, ssh writes "Connection to n1 closed by remote host." or "client_loop: ... Broken pipe".
    assert broken["why"].startswith("n1: the connection broke (")


def test_shared_connection_is_explained_by_its_own_messages(machines: Testbed) -> None:
    shared = ["ssh", "-S", f"{machines.directory}/home/master"]
    exits = machines["n1"].home / ".bashrc"
    machines["n0"].run(*shared, "-MNf", "-oControlPersist=yes", "n1")
    exits.write_text("echo 'root@n1: Permission denied (publickey).' >&2; exit 255\n")
    try:
        (done,) = _connect(machines, {"host": "n1", "command": shared})
    finally:
        exits.unlink()
        machines["n0"].run(*shared, "-O", "exit", "n1")
    assert done["why"].startswith("n1: its login shell ended with exit code 255 before Python started and wr")
