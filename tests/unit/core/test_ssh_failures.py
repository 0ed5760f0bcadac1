"""Each text of OpenSSH 9.2 or bash 5.2 about a failed start becomes one sentence. Some texts are cut."""

from __future__ import annotations

import re

import pytest

from orchestrator.core.errors import EngineError
from orchestrator.engines.ssh import SshEngine, SshLog

CHANGED = """\
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r
The fingerprint for the ED25519 key sent by the remote host is
SHA256:oDs+CbruQH0keYo4JKRXrYp12QtkXnAJv2nFpx1X7pU.\r
Add correct host key in /home/ann/.ssh/known_hosts to get rid of this message.\r
Offending ED25519 key in /home/ann/.ssh/known_hosts:2\r
  ssh-keygen -f "/home/ann/.ssh/known_hosts" -R "n1"\r
Host key for n1 has changed and you have requested strict checking.\r
Host key verification failed.\r
"""
OPEN_KEY = """\
@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @\r
Permissions 0644 for '/home/ann/.ssh/id' are too open.\r
This private key will be ignored.\r
Load key "/home/ann/.ssh/id": bad permissions\r
ann@n1: Permission denied (publickey,password).\r
"""
NOT_FOUND = "bash: line 1: /nowhere/python3: No such file or directory"
DENIED = "bash: line 1: /home/ann/py: Permission denied"
NOT_EXECUTABLE = "bash: line 1: exec: /home/ann/py: cannot execute: Permission denied"
# The output of shims of pyenv 2.4.
MISSING_VERSION = "pyenv: version `3.11.9' is not installed (set by /home/ann/.pyenv/version)"
ELSEWHERE = (
    "pyenv: python3: command not found\n\nThe `python3' command exists in these Python versions:\n  3.11.9\n"
)
OF_PYENV = "its Python is a shim of pyenv that has no such version"
CLOSED = "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by UNKNOWN port 65535\r\n"

# What ssh writes before it exits with 255, and the sentence that follows "n1: "; {} is the text.
_TABLE = """\
ssh: Could not resolve hostname n1: Name or service not known
=> ssh knows no host n1; correct the name
ssh: Could not resolve hostname n1: Temporary failure in name resolution
=> the name n1 cannot be looked up at present; check this machine's network
ssh: connect to host n1 port 22: Connection refused
=> n1 is there, but no ssh server listens on its port 22; start sshd there
ssh: connect to host n1 port 22: Connection timed out
=> n1 does not answer on port 22; check that it is on, and that no firewall
ssh: connect to host n1 port 22: Network is unreachable
=> n1 cannot be reached from here (Network is unreachable); check
Host key verification failed.
=> its host key is not known here; run `ssh n1` once
No ED25519 host key is known for n1 and you have requested strict checking.
Host key verification failed.
=> its host key is not known here; run `ssh n1` once
no such identity: /home/ann/.ssh/id: No such file or directory
ann@n1: Permission denied (publickey,password).
=> it does not let you in without a password (publickey,password), and orch cannot type one; run `ssh-copy
Received disconnect from 10.77.0.11 port 22:2: Too many authentication failures
Disconnected from 10.77.0.11 port 22
=> the server refuses so many keys; name the right one
channel 0: open failed: connect failed: open failed
=> the server refuses another session on a shared connection; raise MaxSessions
Connection to n1 closed by remote host.
=> the connection broke ({}); check
client_loop: send disconnect: Broken pipe
=> the connection broke ({}); check
command-line: line 0: Bad configuration option: nosuch
=> ssh refuses its configuration: {}; correct
Can't open user config file /nowhere: No such file or directory
=> ssh refuses its configuration: {}; correct
/home/ann/.ssh/config line 3: no argument after keyword "port"
=> ssh refuses its configuration: {}; correct
Cannot execute command-line and remote command.
=> ssh's configuration names another command for it (RemoteCommand); add `RemoteCommand none`
something new
=> ssh failed: {}
"""
_ROWS = [row.split("\n=> ") for row in re.findall(r"(?s)(.+?\n=> .+?)\n", _TABLE)]
# Exit code of ssh and text: sentence.
CASES: dict[tuple[int | None, str], str] = {
    **{(255, text.replace("\n", "\r\n") + "\r\n"): said.replace("{}", text) for text, said in _ROWS},
    (
        255,
        f"ssh: Could not resolve hostname gate: Name or service not known\r\n{CLOSED}",
    ): "ssh knows no host gate;",
    (255, CHANGED): (
        "the host key of n1 is not the one in /home/ann/.ssh/known_hosts:2: it was installed again, or another machine"
        " answers in its place; ask its administrator, then remove the old key with `ssh-keygen -R n1`"
    ),
    (
        255,
        CHANGED.replace("for n1 has", "for [gate]:2222 has") + CLOSED,
    ): "the host key of [gate]:2222 is not the",
    (255, OPEN_KEY): "ssh ignores the key /home/ann/.ssh/id, which others can read; run `chmod",
    (255, CLOSED): "it closes connections before the login; too many may be open",
    (255, ""): "ssh failed and gave no reason; try `ssh n1 true`",
    (127, f"{NOT_FOUND}\n"): f"its Python was not found ({NOT_FOUND}); name the one",
    (
        126,
        f"{DENIED}\n{NOT_EXECUTABLE}\n",
    ): f"its Python cannot be executed ({NOT_EXECUTABLE}); check its permissions",
    (
        1,
        "This account is currently not available.\n",
    ): "the login shell of this account is nologin, which runs no",
    (1, MISSING_VERSION): f"{OF_PYENV} ({MISSING_VERSION}); install",
    (127, ELSEWHERE): f"{OF_PYENV} (pyenv: python3: command not found);",
    # A login file that ends the shell.
    (3, ""): "its login shell ended with exit code 3 before Python started; run",
    (0, ""): "its login shell ended with exit code 0 before Python started; run `ssh n1 true`",
    (None, ""): "the connection ended before the agent had started; start again",
    (-9, ""): "ssh was ended by signal 9 on this machine",
}


def test_texts_of_ssh_become_sentences() -> None:
    found = {(code, text): SshEngine().explain("n1", code, text) for code, text in CASES}
    wrong = {case: said for case, said in found.items() if not said.startswith(f"n1: {CASES[case]}")}
    assert not wrong, wrong
    # Only an unknown host key has two texts.
    assert (len(CASES), len(set(found.values()))) == (32, 31)
    said = SshEngine().explain("n1", 255, "ssh: \x1b]0;title\x07\x1b[2Jodd\x9b2J " + "x" * 5000)
    assert not {"\x1b", "\x9b"} & {*said} and len(said) < 400


def test_words_of_ssh() -> None:
    engine = SshEngine(("ssh", "-F", "my file"), connect_timeout_s=2.5)
    words = engine.login_words(SshLog(("other",)))
    assert words[:3] == ["ssh", "-F", "my file"]
    assert {"-oBatchMode=yes", "-oConnectTimeout=3"} <= {*words}
    assert any(word.startswith("-oServerAliveInterval=") for word in words)
    assert not [word for word in words if "HostKeyChecking" in word or "KnownHosts" in word]
    with pytest.raises(EngineError, match=r"^/no/ssh could not be started \(No such file or directory\); "):
        SshEngine(("/no/ssh",)).connect("a", ["true"])
