"""The wheel, installed into a new environment, runs the tests of another project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from orchestrator.client.page.assets import page_body, page_script, page_style

ROOT = Path(__file__).resolve().parents[4]
EXAMPLE = ROOT / "docs/integration"
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "orchestrator", "worker")
TESTS = 5
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def run(*words: str | Path, cwd: Path) -> str:
    """Return the output; AssertionError with the output if the command fails."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run([*map(str, words)], cwd=cwd, text=True, check=False, **pipes)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel of these sources; dependencies come from this environment."""
    place = tmp_path_factory.mktemp("wheel")
    sources = place / "sources"
    sources.mkdir()
    for name in BUILT_FROM:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, sources / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", place, sources, cwd=place)
    (wheel,) = place.glob("tf_orch-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", place / "venv", cwd=place)
    python = place / "venv/bin/python"
    run(*pip, "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=place)
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip()
    Path(packages, "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.parametrize("words", [("-p", "no:xdist"), ("-n", "4")], ids=["serially", "four-at-once"])
def test_integration_example_passes_with_wheel(python: Path, words: tuple[str, ...], tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    where = run(python, "-c", "import orchestrator; print(orchestrator.__file__)", cwd=project).strip()
    assert Path(where).is_relative_to(python.parents[1])
    own = ("-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}")
    assert f"{TESTS} passed" in run(python, "-m", "pytest", *own, *words, cwd=project)
    assert not list(Path(os.environ["XDG_STATE_HOME"]).glob("*"))


def test_wheel_has_the_files_of_the_page(python: Path, tmp_path: Path) -> None:
    program = """
from orchestrator.client.page import assets
print(assets.__file__)
for text in (assets.page_script(), assets.page_style(), assets.page_body()):
    print(len(text))
"""
    where, *sizes = run(python, "-c", program, cwd=tmp_path).split()
    assert Path(where).is_relative_to(python.parents[1])
    assert sizes == [str(len(text)) for text in (page_script(), page_style(), page_body())]
