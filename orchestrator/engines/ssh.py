"""The ssh engine: one ssh process a connection, with the user's configuration, keys and known hosts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.core.text.clean import one_line
from orchestrator.engines import Connection

if TYPE_CHECKING:
    from orchestrator.core.job.spec import JobSpec

# ssh's own exit code; all others are those of the remote command or its shell.
_SSH_FAILED = 255
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_LONGEST_QUOTE = 200
_OPTIONS = (
    "-T",  # no terminal: the stream is binary
    "-a",  # no forwarding of the authentication agent, X11 or ports: the agent outlives this connection
    "-x",
    "-oClearAllForwardings=yes",
    "-oBatchMode=yes",  # never ask for a password or about a host key
    # A connection that the user shares is used, but this ssh never becomes one that outlives the run.
    "-oControlMaster=no",
)

# Text on ssh's stderr, and the sentence for it; the first that matches counts. `{host}` is the host, other names
# are those of the pattern. ssh never translates its messages.
_FAILURES = tuple(
    (re.compile(pattern, re.MULTILINE), sentence)
    for pattern, sentence in (
        (
            r"Could not resolve hostname (?P<name>\S+): Temporary failure",
            "the name {name} cannot be looked up at present; check this machine's network and DNS",
        ),
        (
            r"Could not resolve hostname (?P<name>\S+):",
            "ssh knows no host {name}; correct the name, or add it to ~/.ssh/config",
        ),
        (
            r"connect to host (?P<name>\S+) port (?P<port>\d+): Connection refused",
            "{name} is there, but no ssh server listens on its port {port}; start sshd there, or set Port in"
            " ~/.ssh/config",
        ),
        (
            r"connect to host (?P<name>\S+) port (?P<port>\d+): (?P<reason>Connection timed out)",
            "{name} does not answer on port {port}; check that it is on, and that no firewall drops ssh",
        ),
        (
            r"connect to host (?P<name>\S+) port \d+: (?P<reason>[^\r\n]+)",
            "{name} cannot be reached from here ({reason}); check its address and this machine's network",
        ),
        (
            r"REMOTE HOST IDENTIFICATION HAS CHANGED(?:.*\s)*?Offending \S+ key in (?P<file>[^\r\n]+)",
            "its host key is not the one in {file}: it was installed again, or somebody answers in its place; ask"
            " its administrator, then remove the old key with ssh-keygen -R",
        ),
        (
            r"Host key verification failed",
            "its host key is not known here; run `ssh {host}` once, compare the fingerprint and accept the key",
        ),
        (
            r"UNPROTECTED PRIVATE KEY FILE(?:.*\s)*?Permissions \S+ for '(?P<file>[^'\r\n]+)'",
            "ssh ignores the key {file}, which others can read; run `chmod 600 {file}`",
        ),
        (
            r"Too many authentication failures",
            "the server refuses so many keys; name the right one by IdentityFile and IdentitiesOnly in ~/.ssh/config",
        ),
        (
            r"Permission denied \((?P<methods>[^)\r\n]*)\)",
            "it does not let you in without a password ({methods}), and orch cannot type one; run"
            " `ssh-copy-id {host}`, or load your key with ssh-add",
        ),
        (
            r"^(?P<text>.*(?:Bad configuration option|Bad owner or permissions on|Can't open user config file"
            r"|[Mm]issing argument|no argument after keyword|keyword \S+ extra arguments)[^\r\n]*)",
            "ssh refuses its configuration: {text}; correct that file or option",
        ),
        (
            r"Cannot execute command-line and remote command",
            "ssh's configuration names another command for it (RemoteCommand); add `RemoteCommand none` for this host,"
            ' or start with --ssh-command "ssh -oRemoteCommand=none"',
        ),
        (
            r"open failed",
            "the server refuses another session on a shared connection; raise MaxSessions in its sshd_config, or"
            " close the connection with `ssh -O exit {host}`",
        ),
        (
            r"kex_exchange_identification|banner exchange|Connection (?:closed|reset) by",
            "it closes connections before the login; too many may be open (MaxStartups in sshd_config), or another"
            " program listens on its port",
        ),
        (
            r"Timeout, server|closed by remote host|client_loop:|Broken pipe|[Cc]onnection reset",
            "the connection broke ({last}); check the network and sshd there",
        ),
    )
)


class SshEngine:
    """`command`: the words that call ssh, with the user's own options if there are any."""

    # The far end leaves when its input ends; ssh then passes on its exit code.
    leave_s = 5.0
    is_remote = True

    def __init__(self, command: Sequence[str] = ("ssh",), connect_timeout_s: float = 10.0) -> None:
        self._command = tuple(command)
        self._connect_timeout_s = max(math.ceil(connect_timeout_s), 1)

    def connect(self, destination: str, words: Sequence[str], errors: int | None = None) -> Connection:
        """Run `words`, text for the shell there. The lists of processes show it, here and there."""
        return Connection([*self.login_words(), destination, *words], errors)

    def login_words(self) -> list[str]:
        """The words of ssh before the name of the host."""
        # rsync and the check before a start do not ping, and would wait for hours on a dead network.
        alive = ("-oServerAliveInterval=5", "-oServerAliveCountMax=3")
        return [*self._command, *_OPTIONS, *alive, f"-oConnectTimeout={self._connect_timeout_s}"]

    def explain(self, host: str, exit_code: int | None, errors: str) -> str:
        """Why a connection to `host` ended, and what to do, from ssh's exit code and its last text on stderr."""
        return f"{host}: {next(_explanations(host, exit_code, errors))}"

    def explain_silence(self, host: str, waited_s: float, errors: str) -> str:
        said = last_line(errors)
        return (
            f"{host}: it did not answer within {waited_s:g} s{f' ({said})' if said else ''}; try `ssh {host} true`, and"
            " check that its login files (.bashrc) do not read the input"
        )

    def why_gone(self, host: str) -> str | None:
        return None


def for_job(spec: JobSpec) -> SshEngine:
    return SshEngine(spec.ssh_command, spec.link_timeout_s)


def _explanations(host: str, exit_code: int | None, errors: str) -> Iterator[str]:
    """Yield the explanation; a less certain one after it."""
    last = last_line(errors)
    said = f" ({last})" if last else ""
    if exit_code == _SSH_FAILED:
        for pattern, sentence in _FAILURES:
            if found := pattern.search(errors):
                quoted = {name: one_line(text)[:_LONGEST_QUOTE] for name, text in found.groupdict().items()}
                yield sentence.format(host=host, last=last, **quoted)
        yield f"ssh failed: {last}" if last else f"ssh failed and gave no reason; try `ssh {host} true`"
    if exit_code == _NOT_FOUND:
        yield f"its Python was not found{said}; name the one to use with --remote-python"
    if exit_code == _NOT_EXECUTABLE:
        yield (
            f"its Python cannot be executed{said}; check its permissions and whether its file system is mounted"
            " noexec, or name another one with --remote-python"
        )
    if exit_code is not None and exit_code < 0:
        yield f"ssh was ended by signal {-exit_code} on this machine; start again"
    if exit_code is not None:  # 0, too: of a login file that calls `exit`
        wrote = f" and wrote: {last.rstrip('.')}" if last else ""
        yield (
            f"its login shell ended with exit code {exit_code} before Python started{wrote}; run `ssh {host} true`,"
            " and correct what its login files (.bashrc) do without a terminal"
        )
    yield (
        "the connection ended before the agent had started"
        + (f": {last}" if last else "")
        + "; start again, and"
        f" look at the system log of {host} if it happens again"
    )


def last_line(text: str) -> str:
    """Return the last line that is not empty, safe to print, and not too long."""
    lines = [line for line in map(one_line, text.splitlines()) if line.strip()]
    return "" if not lines else lines[-1].strip()[:_LONGEST_QUOTE]
