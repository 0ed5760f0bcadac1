"""Options of the soak; scripts/tools/soak passes them."""

from __future__ import annotations

import ctypes
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e/local/faults"))

_SHARED_MEMORY = "/dev/shm"
_CLONE_NEWNS = 0x0002_0000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runs", type=int, default=10, help="so many runs with faults drawn at random")
    parser.addoption("--seed", type=int, help="draws the same runs again")
    parser.addoption("--times", type=int, default=0, help="each light cell of the matrix so many times")
    parser.addoption("--session", type=int, default=40, help="so many runs of one session")


def pytest_configure(config: pytest.Config) -> None:
    # xdist's workers get the options from here.
    if config.getoption("seed", 0) is None:
        config.option.seed = random.SystemRandom().randrange(10**6)


def pytest_report_header(config: pytest.Config) -> str:
    return f"soak: --seed {config.getoption('seed', 0)}"


@pytest.fixture(scope="session")
def has_own_shared_memory(pytestconfig: pytest.Config) -> bool:
    """Give this process its own /dev/shm: what is left in it is from its own runs. False without root.

    Not in a process that runs other tests, too: the options are known only to scripts/tools/soak.
    """
    if pytestconfig.getoption("runs", None) is None:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        return False
    if libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None) != 0:
        return False
    name = _SHARED_MEMORY.encode()
    return bool(libc.mount(b"tmpfs", name, b"tmpfs", ctypes.c_ulong(0), b"mode=1777") == 0)


@pytest.fixture(autouse=True)
def no_shared_memory_left(has_own_shared_memory: bool):  # type: ignore[no-untyped-def]
    yield
    if has_own_shared_memory:
        assert not [*Path(_SHARED_MEMORY).iterdir()]
