"""Each text that ssh or a host's shell writes about a failed start becomes one sentence.

The texts are those of OpenSSH 9.2 and bash 5.2.
"""

from __future__ import annotations

import pytest

from orchestrator.core.errors import EngineError
from orchestrator.engines.ssh import SshEngine, SshLog

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r
Someone could be eavesdropping on you right now (man-in-the-middle attack)!\r
It is also possible that a host key has just been changed.\r
The fingerprint for the ED25519 key sent by the remote host is
SHA256:oDs+CbruQH0keYo4JKRXrYp12QtkXnAJv2nFpx1X7pU.\r
Please contact your system administrator.\r
Add correct host key in /home/ann/.ssh/known_hosts to get rid of this message.\r
Offending ED25519 key in /home/ann/.ssh/known_hosts:2\r
  remove with:\r
  ssh-keygen -f "/home/ann/.ssh/known_hosts" -R "n1"\r
Host key for n1 has changed and you have requested strict checking.\r
Host key verification failed.\r
"""
OPEN_KEY = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @\r
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
Permissions 0644 for '/home/ann/.ssh/id' are too open.\r
It is required that your private key files are NOT accessible by others.\r
This private key will be ignored.\r
Load key "/home/ann/.ssh/id": bad permissions\r
ann@n1: Permission denied (publickey,password).\r
"""
NOT_EXECUTABLE = """\
bash: line 1: /home/ann/py: Permission denied
bash: line 1: exec: /home/ann/py: cannot execute: Permission denied
"""
CLOSED = "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by UNKNOWN port 65535\r\n"

CASES = {
    "unknown name": (
        255,
        "ssh: Could not resolve hostname n1: Name or service not known\r\n",
        "n1: ssh knows no host n1; correct the name",
    ),
    "no name server": (
        255,
        "ssh: Could not resolve hostname n1: Temporary failure in name resolution\r\n",
        "n1: the name n1 cannot be looked up at present; check this machine's network",
    ),
    "unknown proxy": (
        255,
        "ssh: Could not resolve hostname gate: Name or service not known\r\n" + CLOSED,
        "n1: ssh knows no host gate;",
    ),
    "refused": (
        255,
        "ssh: connect to host n1 port 22: Connection refused\r\n",
        "n1: n1 is there, but no ssh server listens on its port 22; start sshd there",
    ),
    "silent": (
        255,
        "ssh: connect to host n1 port 22: Connection timed out\r\n",
        "n1: n1 does not answer on port 22; check that it is on, and that no firewall",
    ),
    "no network": (
        255,
        "ssh: connect to host n1 port 22: Network is unreachable\r\n",
        "n1: n1 cannot be reached from here (Network is unreachable); check",
    ),
    "changed host key": (
        255,
        CHANGED,
        "n1: its host key is not the one in /home/ann/.ssh/known_hosts:2: it was installed again, or",
    ),
    "unknown host key": (
        255,
        "Host key verification failed.\r\n",
        "n1: its host key is not known here; run `ssh n1` once",
    ),
    "unknown host key, strict": (
        255,
        "No ED25519 host key is known for n1 and you have requested strict checking.\r\n"
        "Host key verification failed.\r\n",
        "n1: its host key is not known here; run `ssh n1` once",
    ),
    "password": (
        255,
        "no such identity: /home/ann/.ssh/id: No such file or directory\r\n"
        "ann@n1: Permission denied (publickey,password).\r\n",
        "n1: it does not let you in without a password (publickey,password), and orch cannot type one; run `ssh-copy",
    ),
    "too many keys": (
        255,
        "Received disconnect from 10.77.0.11 port 22:2: Too many authentication failures\r\n"
        "Disconnected from 10.77.0.11 port 22\r\n",
        "n1: the server refuses so many keys; name the right one",
    ),
    "readable key": (
        255,
        OPEN_KEY,
        "n1: ssh ignores the key /home/ann/.ssh/id, which others can read; run `chmod",
    ),
    "closed at once": (255, CLOSED, "n1: it closes connections before the login; too many may be open"),
    "no more sessions": (
        255,
        "channel 0: open failed: connect failed: open failed\r\n",
        "n1: the server refuses another session on a shared connection; raise MaxSessions",
    ),
    "server ended": (
        255,
        "Connection to n1 closed by remote host.\r\n",
        "n1: the connection broke (Connection to n1 closed by remote host.); check",
    ),
    "server silent": (
        255,
        "Timeout, server n1 not responding.\r\n",
        "n1: the connection broke (Timeout, server n1 not responding.); check",
    ),
    "broken pipe": (
        255,
        "client_loop: send disconnect: Broken pipe\r\n",
        "n1: the connection broke (client_loop: send disconnect: Broken pipe); check",
    ),
    "wrong option": (
        255,
        "command-line: line 0: Bad configuration option: nosuch\r\n",
        "n1: ssh refuses its configuration: command-line: line 0: Bad configuration option: nosuch; correct",
    ),
    "no such configuration": (
        255,
        "Can't open user config file /nowhere: No such file or directory\r\n",
        "n1: ssh refuses its configuration: Can't open user config file /nowhere: No such file",
    ),
    "open configuration": (
        255,
        "Bad owner or permissions on /home/ann/.ssh/config\r\n",
        "n1: ssh refuses its configuration: Bad owner or permissions on /home/ann/.ssh/config; correct",
    ),
    "another failure of ssh": (255, "something new\r\n", "n1: ssh failed: something new"),
    "a silent failure of ssh": (255, "", "n1: ssh failed and gave no reason; try `ssh n1 true`"),
    "no python": (
        127,
        "bash: line 1: /nowhere/python3: No such file or directory\n",
        "n1: its Python was not found (bash: line 1: /nowhere/python3: No such file or directory); name the one",
    ),
    "options of a host": (
        255,
        '/home/ann/.ssh/config line 3: no argument after keyword "port"\r\n',
        "n1: ssh refuses its configuration: /home/ann/.ssh/config line 3: no argument after keyword",
    ),
    "noexec": (
        126,
        NOT_EXECUTABLE,
        "n1: its Python cannot be executed (bash: line 1: exec: /home/ann/py: cannot execute: Permission denied);"
        " check its permissions and whether its file system is mounted noexec",
    ),
    "no login": (
        1,
        "This account is currently not available.\n",
        "n1: its login shell ended with exit code 1 before Python started and wrote: This account is currently not"
        " available; run `ssh n1 true`",
    ),
    "login file that ends the shell": (
        3,
        "",
        "n1: its login shell ended with exit code 3 before Python started; run",
    ),
    "login file that ends the shell without an error": (
        0,
        "",
        "n1: its login shell ended with exit code 0 before Python started; run `ssh n1 true`",
    ),
    "another command in the configuration": (
        255,
        "Cannot execute command-line and remote command.\r\n",
        "n1: ssh's configuration names another command for it (RemoteCommand); add `RemoteCommand none`",
    ),
    "no exit code": (None, "", "n1: the connection ended before the agent had started; start again"),
    "killed": (-9, "", "n1: ssh was ended by signal 9 on this machine; start again"),
}


@pytest.mark.parametrize("case", CASES)
def test_text_of_ssh_becomes_a_sentence(case: str) -> None:
    code, text, sentence = CASES[case]
    assert SshEngine().explain("n1", code, text).startswith(sentence)


def test_what_a_host_writes_is_quoted_safely() -> None:
    said = SshEngine().explain("n1", 255, "ssh: \x1b]0;title\x07\x1b[2Jodd\x9b2J " + "x" * 5000)
    assert "\x1b" not in said
    assert "\x9b" not in said
    assert len(said) < 400


def test_no_two_failures_share_a_sentence_by_accident() -> None:
    same = {"unknown host key", "unknown host key, strict"}
    said = [
        SshEngine().explain("n1", code, text) for case, (code, text, _) in CASES.items() if case not in same
    ]
    assert len(set(said)) == len(said)


def test_words_of_ssh() -> None:
    engine = SshEngine(("ssh", "-F", "my file"), connect_timeout_s=2.5)
    words = engine.login_words(SshLog(("other",)))
    assert words[:3] == ["ssh", "-F", "my file"]
    assert "-oBatchMode=yes" in words
    assert "-oConnectTimeout=3" in words
    assert any(word.startswith("-oServerAliveInterval=") for word in words)
    assert not [word for word in words if "HostKeyChecking" in word or "KnownHosts" in word]


def test_missing_ssh_is_named() -> None:
    with pytest.raises(EngineError, match=r"^/no/ssh could not be started \(No such file or directory\); "):
        SshEngine(("/no/ssh",)).connect("a", ["true"])
