"""The ssh engine: one ssh process a connection, with the user's configuration, keys and known hosts."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.errors import EngineError
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

# Interval of ssh's own pings (seconds).
_ALIVE_S = 5
# Limit on what is read of ssh's messages. The reason for a failure is at their end.
_MOST_BYTES = 4096
# Options that make ssh write its messages elsewhere (-E FILE, -y), alone or combined with flags.
_LOGS_ELSEWHERE = re.compile(r"-[46AaCfGgKkMNnqsTtVvXxYy]*[Ey]")
# Messages of an ssh that did not reach the server. Text on its stderr is from the ssh of a ProxyJump.
_BEFORE_LOGIN = ("kex_exchange_identification", "UNKNOWN port 65535")

# A line of ssh's messages, and the sentence for it; the first pattern that matches a line counts. `{host}` is the host,
# other names are those of the pattern, or of a row above without a sentence. ssh never translates its messages. It puts
# words such as "Received disconnect from" before a text of the server.
_FAILURES = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (
            r"^ssh: Could not resolve hostname (?P<name>\S+): Temporary failure",
            "the name {name} cannot be looked up at present; check this machine's network and DNS",
        ),
        (
            r"^ssh: Could not resolve hostname (?P<name>\S+):",
            "ssh knows no host {name}; correct the name, or add it to ~/.ssh/config",
        ),
        (
            r"^ssh: connect to host (?P<name>\S+) port (?P<port>\d+): Connection refused",
            "{name} is there, but no ssh server listens on its port {port}; start sshd there, or set Port in"
            " ~/.ssh/config",
        ),
        (
            r"^ssh: connect to host (?P<name>\S+) port (?P<port>\d+): Connection timed out",
            "{name} does not answer on port {port}; check that it is on, and that no firewall drops ssh",
        ),
        (
            r"^ssh: connect to host (?P<name>\S+) port \d+: (?P<reason>.+)",
            "{name} cannot be reached from here ({reason}); check its address and this machine's network",
        ),
        (
            r"^Offending \S+ key in (?P<file>.+)",
            "",
        ),
        (
            r"^Host key for (?P<name>\S+) has changed",
            "the host key of {name} is not the one in {file}: it was installed again, or another machine answers in"
            " its place; ask its administrator, then remove the old key with `ssh-keygen -R {name}`",
        ),
        (
            r"^Host key verification failed",
            "its host key is not known here; run `ssh {host}` once, compare the fingerprint and accept the key",
        ),
        (
            r"^Permissions \d+ for '(?P<file>[^']+)' are too open",
            "ssh ignores the key {file}, which others can read; run `chmod 600 {file}`",
        ),
        (
            r"Too many authentication failures",
            "the server refuses so many keys; name the right one by IdentityFile and IdentitiesOnly in ~/.ssh/config",
        ),
        (
            r"^(?:\S+: )?Permission denied \((?P<methods>[^)]*)\)",
            "it does not let you in without a password ({methods}), and orch cannot type one; run"
            " `ssh-copy-id {host}`, or load your key with ssh-add",
        ),
        (
            r"Bad configuration option|Bad owner or permissions on|Can't open user config file"
            r"|[Mm]issing argument|no argument after keyword|keyword \S+ extra arguments",
            "ssh refuses its configuration: {line}; correct that file or option",
        ),
        (
            r"^Cannot execute command-line and remote command",
            "ssh's configuration names another command for it (RemoteCommand); add `RemoteCommand none` for this host,"
            ' or start with --ssh-command "ssh -oRemoteCommand=none"',
        ),
        (
            r"^channel \d+: open failed",
            "the server refuses another session on a shared connection; raise MaxSessions in its sshd_config, or"
            " close the connection with `ssh -O exit {host}`",
        ),
        (
            r"^kex_exchange_identification|banner exchange|^Connection (?:closed|reset) by",
            "it closes connections before the login; too many may be open (MaxStartups in sshd_config), or another"
            " program listens on its port",
        ),
        (
            r"^Timeout, server|closed by remote host|^client_loop:|Broken pipe|[Cc]onnection reset",
            "the connection broke ({line}); check the network and sshd there",
        ),
    )
)
# The same for what a host writes that does not start Python.
_OF_THE_HOST = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (
            r"^pyenv: (?:version \S+ is not installed|\S+: command not found)",
            "its Python is a shim of pyenv that has no such version ({line}); install that version, or name the"
            " interpreter itself with --remote-python",
        ),
        (
            r"^This account is currently not available",
            "the login shell of this account is nologin, which runs no command; log in as another user, or ask the"
            " administrator for another shell",
        ),
    )
)
# ssh prints this line on stderr, also with -E.
_CLOSED = re.compile(r"^Connection to \S+ closed by remote host")


class SshLog:
    """A file for the messages of one ssh process, apart from what the host prints on stderr. close() removes it.

    `words` are options for that ssh. They are empty for a program that is not OpenSSH's, or that logs elsewhere.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.words: tuple[str, ...] = ()
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        if Path(command[0]).name != "ssh" or any(map(_LOGS_ELSEWHERE.match, command[1:])):
            return
        try:
            # ssh creates the file. It stays missing if this ssh does not support -E.
            self._directory = tempfile.TemporaryDirectory(prefix="orch-ssh-")
        except OSError:
            return  # for example, the disk is full
        self._path = Path(self._directory.name, "messages")
        self.words = ("-E", str(self._path))

    def read(self) -> str | None:
        """Return the end of the messages; None if they are on stderr."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_BYTES))
                return file.read(_MOST_BYTES).decode(errors="replace")
        except (AttributeError, OSError):
            return None

    def close(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()


class _SshConnection(Connection):
    def __init__(self, words: Sequence[str], errors: int | None, log: SshLog) -> None:
        self._log = log
        try:
            super().__init__(words, errors)
        except EngineError:
            log.close()
            raise

    def messages(self) -> str | None:
        return self._log.read()

    def kill(self) -> None:
        super().kill()
        self._log.close()


class SshEngine:
    """`command`: the words that call ssh, with the user's own options if there are any."""

    # The far end leaves when its input ends; ssh then passes on its exit code.
    leave_s = 5.0
    # If ssh is killed, the far end sees the end of its input, too.
    unanswered_s = 1.0
    is_remote = True

    def __init__(self, command: Sequence[str] = ("ssh",), connect_timeout_s: float = 10.0) -> None:
        self._command = tuple(command)
        self._connect_timeout_s = max(math.ceil(connect_timeout_s), 1)

    def connect(self, destination: str, words: Sequence[str], errors: int | None = None) -> Connection:
        """Run `words`, text for the shell there. The lists of processes show it, here and there."""
        log = self.new_log()
        return _SshConnection([*self.login_words(log), destination, *words], errors, log)

    def new_log(self) -> SshLog:
        return SshLog(self._command)

    def login_words(self, log: SshLog) -> list[str]:
        """The words of ssh before the name of the host."""
        # rsync and the check before a start do not ping, and would wait for hours on a dead network. ssh gives up after
        # the pings of an agent do.
        count = math.ceil(self._connect_timeout_s / _ALIVE_S) + 1
        alive = (f"-oServerAliveInterval={_ALIVE_S}", f"-oServerAliveCountMax={count}")
        return [*self._command, *log.words, *_OPTIONS, *alive, f"-oConnectTimeout={self._connect_timeout_s}"]

    def explain(self, host: str, exit_code: int | None, errors: str, messages: str | None = None) -> str:
        """Why a connection to `host` ended, and what to do, from ssh's exit code, the last text on stderr and ssh's
        own messages, which are None if they are on stderr."""
        return f"{host}: {_explanation(host, exit_code, errors, messages)}"

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


def _explanation(host: str, exit_code: int | None, errors: str, messages: str | None) -> str:
    last = last_line(errors)
    said = f" ({last})" if last else ""
    if exit_code == _SSH_FAILED:
        own = errors if messages is None else messages
        if messages is not None and any(text in messages for text in _BEFORE_LOGIN):
            own = f"{errors}\n{messages}"
        elif _CLOSED.search(last):
            own = f"{own}\n{last}"
        if found := _look_up(_FAILURES, host, own):
            return found
        if own.strip():
            return f"ssh failed: {last_line(own)}"
        if not last:
            return f"ssh failed and gave no reason; try `ssh {host} true`"
    if exit_code is None:
        return (
            f"the connection ended before the agent had started{last and f': {last}'}; start again, and look at the"
            f" system log of {host} if it happens again"
        )
    if exit_code < 0:
        return f"ssh was ended by signal {-exit_code} on this machine"
    if found := _look_up(_OF_THE_HOST, host, errors):
        return found
    if exit_code == _NOT_FOUND:
        return f"its Python was not found{said}; name the one to use with --remote-python"
    if exit_code == _NOT_EXECUTABLE:
        return (
            f"its Python cannot be executed{said}; check its permissions and whether its file system is mounted"
            " noexec, or name another one with --remote-python"
        )
    # Also 0, if a login file calls `exit`.
    wrote = f" and wrote: {last.rstrip('.')}" if last else ""
    return (
        f"its login shell ended with exit code {exit_code} before Python started{wrote}; run `ssh {host} true`, and"
        " correct what its login files (.bashrc) do without a terminal, or its Python if that succeeds"
    )


def _look_up(table: Iterable[tuple[re.Pattern[str], str]], host: str, text: str) -> str | None:
    """Return the sentence of the first row whose pattern matches a line of the text."""
    lines = [one_line(line) for line in text.splitlines()]
    names = {"host": host, "file": "~/.ssh/known_hosts"}
    for pattern, sentence in table:
        if found := next(filter(None, map(pattern.search, lines)), None):
            names |= {"line": found.string, **found.groupdict()}
            if sentence:
                return sentence.format(**{name: quoted[:_LONGEST_QUOTE] for name, quoted in names.items()})
    return None


def last_line(text: str) -> str:
    """Return the last line that is not empty, safe to print, and not too long."""
    lines = [line for line in map(one_line, text.splitlines()) if line.strip()]
    return "" if not lines else lines[-1].strip()[:_LONGEST_QUOTE]
