"""`--tensorboard`: event files of the tasks in one directory, and the server for them (pure)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from orchestrator.core.job.choices import NetworkOption

# Its name among the tasks. It is not in TF_CONFIG.
TASK = "tensorboard:0"
DIRECTORY_VARIABLE = "ORCH_TENSORBOARD_DIR"
_NOT_INSTALLED = (
    "--tensorboard: the tensorboard package is installed neither for the command's Python nor for orch's, so nothing "
    "serves the event files: pip install tensorboard"
)
_PRIVATE = (
    "--tensorboard: with --network private, nothing outside this run could reach the server, so nothing serves the "
    "event files"
)


class TensorBoard(BaseModel):
    """Event files, and their server if `python` has the tensorboard package. `program` is the server's script."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    python: str | None = None
    program: str = ""

    def serves(self, network: NetworkOption) -> bool:
        return self.python is not None and network is not NetworkOption.PRIVATE

    def note(self, network: NetworkOption) -> str | None:
        """The reason why the event files are not served, None if they are."""
        if self.python is None:
            return _NOT_INSTALLED
        return None if self.serves(network) else _PRIVATE

    def argv(self, directory: str, port: int) -> tuple[str, ...]:
        """Return the server's command. It listens on 127.0.0.1 only, since it has no login. The fast loader would be
        another process, from a package that may be missing."""
        options = ("--logdir", directory, "--host", "127.0.0.1", "--port", str(port), "--load_fast=false")
        return (self.python or "", self.program, *options)


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/"
