"""The cases of a JUnit document."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as Xml


class Case(NamedTuple):
    name: str
    verdict: str
    message: str
    text: str


def junit_cases(document: bytes | Path) -> list[Case]:
    """The cases of a document whose numbers agree with them."""
    root = Xml.fromstring(document.read_bytes() if isinstance(document, Path) else document)
    (suite,) = root.findall("testsuite")
    found = []
    for case in suite.findall("testcase"):
        assert float(case.get("time", "")) >= 0 and case.get("classname") == suite.get("name")
        (verdict,) = [*case] or [Xml.Element("passed")]
        found.append(Case(case.get("name", ""), verdict.tag, verdict.get("message", ""), verdict.text or ""))
    for count, verdict in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(count, "")) == sum(case.verdict == verdict for case in found)
    assert int(suite.get("tests", "")) == len(found)
    return found
