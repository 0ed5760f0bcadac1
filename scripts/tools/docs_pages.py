"""The hook of mkdocs.yml: README, changelog and contributing guide become pages, and their links keep working.

The pages are written for two readers: a forge that shows the files of the repository, and the site that mkdocs builds
from `docs/`. A link to a file outside `docs/` that is not a page becomes plain text on the site; a link to a file that
does not exist fails the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Page of the site -> file of the repository, for pages that lie outside docs/.
PAGES = {
    "index.md": "README.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    source = PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def rewritten(link: re.Match[str]) -> str:
        image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        path = normpath(f"{Path(source).parent.as_posix()}/{target}")
        if not (ROOT / path).exists():
            raise PluginError(f"{source} links to {target}, which does not exist")
        if (ROOT / path).is_dir() and path.startswith("docs/"):
            path += "/README.md"
        page_uri = next((uri for uri, file in PAGES.items() if file == path), None)
        if page_uri is None and path.startswith("docs/"):
            page_uri = path.removeprefix("docs/")
        if page_uri is None:
            return text
        return f"{image}[{text}]({relpath(page_uri, Path(page.file.src_uri).parent.as_posix())}{anchor})"

    return _LINK.sub(rewritten, markdown)
