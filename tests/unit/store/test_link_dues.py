"""When the links to many hosts are read although nothing has arrived."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.supervisor.hosts import LinkDues

_hosts = st.sampled_from("abc")
_times = st.integers(0, 9).map(float)
_changes = st.tuples(_hosts, st.none() | _times) | _times


@given(st.lists(_changes, max_size=30))
def test_each_link_is_read_at_its_last_due_time(changes: list[tuple[str, float | None] | float]) -> None:
    dues, expected = LinkDues(), dict[str, float]()
    for change in changes:
        if isinstance(change, float):
            assert set(dues.take(change)) == {host for host, due in expected.items() if due <= change}
            expected = {host: due for host, due in expected.items() if due > change}
        else:
            host, due = change
            dues.set(host, due)
            expected.pop(host, None)
            if due is not None:
                expected[host] = due
        assert dues.first() == min(expected.values(), default=None)
