"""The ssh engine with a real ssh: what it connects to, and what it says when it cannot."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from testbed import Testbed

# Runs on n0: connects, sends "question", closes, and prints the answer.
_CONNECT = """
import json, pathlib, socket, sys, tempfile
from orchestrator.engines.ssh import SshEngine
for line in sys.stdin:
    case = json.loads(line)
    pathlib.Path(sys.argv[1]).write_text(case["before"])
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
    """`before`: what the login file of n1 runs."""
    login, file = machines.shared / "login", machines["n1"].home / ".bashrc"
    file.write_text(f". {login}\n")
    lines = "".join(f"{json.dumps({'words': 'cat', 'before': '', **case})}\n" for case in cases)
    words = (sys.executable, "-c", _CONNECT, str(login))
    try:
        done = machines["n0"].run(*words, stdin=lines.encode(), cwd=Path(__file__).parents[3])
    finally:
        file.unlink()
        login.unlink()
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_bytes_pass_in_both_directions_with_the_user_s_own_options(machines: Testbed) -> None:
    """A login file may write any text. No shared connection is left."""
    home = machines.directory / "home"
    config = machines.shared / "other config"
    config.write_text(
        f"Host elsewhere\n HostName n2\n HostKeyAlias n2\nHost *\n IdentityFile {home}/.ssh/id\n"
        f" ControlMaster auto\n ControlPersist yes\n ControlPath {home}/master-%C\n"
    )
    configured = ["ssh", "-F", str(config)]
    shell, noisy, elsewhere, shared = _connect(
        machines,
        {"host": "root@n1", "words": "printf '%s|' 'two  words' \\* $((1 + 1)); cat"},
        {"host": "n1", "before": "echo welcome; echo noise >&2\n"},
        {"host": "elsewhere", "words": "hostname", "command": configured},
        {"host": "n1", "command": configured},
    )
    assert (shell["answer"], shell["code"]) == ("two  words|*|2|question", 0)
    assert noisy["answer"].endswith("question")
    assert elsewhere["answer"] == "n2\n"
    assert shared["answer"] == "question"
    assert machines["n0"].command_lines() == []


def test_reasons_are_distinguished(machines: Testbed) -> None:
    """Wherever ssh's messages are. The user's own log is used, and orch does not read it."""
    machines.cut("n3")
    log = machines.shared / "own log"
    unreached = "n0: n0 is there, but no ssh server listens on its port 22;"
    shim = "pyenv: version `3.11.9' is not installed (set by /home/ann/.pyenv/version)"
    said = machines.shared / "said"
    said.write_text(f"{shim}\n")
    rows: list[tuple[dict[str, Any], str]] = [
        ({"host": "nowhere"}, "nowhere: ssh knows no host nowhere; correct the name"),
        ({"host": "n0"}, unreached),
        ({"host": "n3", "timeout_s": 1}, "n3: n3 does not answer on port 22;"),
        ({"host": "n1", "words": "exec /nowhere/python3"}, "n1: its Python was not found ("),
        (
            {"host": "n1", "command": ["ssh", "-oPubkeyAuthentication=no"]},
            "n1: it does not let you in without a password (publickey,password)",
        ),
        ({"host": "n1", "command": ["ssh", "-oProxyJump=nowhere"]}, "n1: ssh knows no host nowhere;"),
        (
            {"host": "n1", "command": ["ssh", "-oNoSuch=1"]},
            "n1: ssh refuses its configuration: command-line: line 0: Bad conf",
        ),
        ({"host": "n0", "command": ["ssh", "-E", str(log)]}, "n0: ssh failed and gave no reason"),
        ({"host": "n0", "command": ["ssh", "-vvv"]}, unreached),
        # "Connection to n1 closed by remote host." or "client_loop: ... Broken pipe".
        ({"host": "n1", "words": "kill -9 $PPID; sleep 1"}, "n1: the connection broke ("),
        (
            {"host": "n1", "before": "echo no entry >&2; exit 3\n"},
            "n1: its login shell ended with exit code 3 before Python started and wrote: no entry;"
            " run `ssh n1 true`",
        ),
        (
            {"host": "n1", "words": f"cat {said} >&2; exit 1"},
            f"n1: its Python is a shim of pyenv that has no such version ({shim})",
        ),
    ]
    done = _connect(machines, *(case for case, _ in rows))
    wrong = [
        (case, each["why"])
        for (case, said), each in zip(rows, done, strict=True)
        if not each["why"].startswith(said)
    ]
    assert not wrong
    assert "Connection refused" in log.read_text()


def test_host_keys_count_and_no_question_is_asked(machines: Testbed) -> None:
    known = machines["n0"].home / ".ssh/known_hosts"
    text = known.read_text()
    first, *others = text.splitlines(keepends=True)
    key = others[1].split()[1:]
    try:
        known.write_text(f"{first}n1 {' '.join(key)}\n")
        changed, unknown = _connect(machines, {"host": "n1"}, {"host": "n2"})
    finally:
        known.write_text(text)
    assert changed["why"].startswith(
        f"n1: the host key of n1 is not the one in {machines.directory}/home/.ssh/known_hosts:2: it was"
    )
    assert changed["why"].endswith("`ssh-keygen -R n1`")
    assert unknown["why"].startswith("n2: its host key is not known here; run `ssh n2` once")
    assert known.read_text() == text


def test_a_host_cannot_imitate_the_messages_of_ssh(machines: Testbed) -> None:
    """A shared connection is explained by its own messages."""
    shared = ["ssh", "-S", f"{machines.directory}/home/master"]
    commands = (["ssh"], ["ssh", "-v"], ["ssh", "-oLogLevel=QUIET"], shared)
    machines["n0"].run(*shared, "-MNf", "-oControlPersist=yes", "n1")
    said = "ssh: Could not resolve hostname n1: Name or service not known"
    before = f"echo '{said}' >&2; exit 255\n"
    try:
        plain, verbose, quiet, master = _connect(
            machines, *({"host": "n1", "command": each, "before": before} for each in commands)
        )
    finally:
        machines["n0"].run(*shared, "-O", "exit", "n1")
    wrote = "n1: its login shell ended with exit code 255 before Python started and wr"
    assert all(each["why"].startswith(wrote) for each in (plain, quiet, master))
    assert f"ote: {said[:20]}" in plain["why"]
    assert verbose["why"].startswith("n1: ssh failed: debug1: Exit status 255")
