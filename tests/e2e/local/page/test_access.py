"""Attacks on the server of `orch ui` by pages of the browser and by other servers of the machine."""

from __future__ import annotations

import ast
import inspect
import itertools
import time
from http.cookies import SimpleCookie

import pytest
from page_client import AppBrowser
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from orchestrator.ui import access as access_module
from orchestrator.ui.access import Access, Guard

ORIGIN = "http://127.0.0.1:7117"
ORDER = {"X-Orch": "1"}


async def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse("the page")


@pytest.fixture
def access() -> Access:
    return Access("127.0.0.1", 7117)


def browser_of(access: Access) -> AppBrowser:
    routes = [Route("/", answer), Route("/order", answer, methods=["POST"]), Route("/api/runs", answer)]
    return AppBrowser(Guard(Starlette(routes=routes), access), ORIGIN)


@pytest.fixture
def stranger(access: Access) -> AppBrowser:
    """A browser without the cookie."""
    return browser_of(access)


@pytest.fixture
def user(access: Access) -> AppBrowser:
    """The browser of the user, which has opened the address."""
    browser = browser_of(access)
    assert browser.get(access.address).status == 303
    return browser


def test_token_is_exchanged_for_a_cookie_and_leaves_the_address(stranger: AppBrowser, access: Access) -> None:
    got = stranger.get(access.address)
    assert (got.status, got.headers["location"]) == (303, "/")
    cookie = SimpleCookie(got.headers["set-cookie"])[access.cookie]
    assert cookie["httponly"]
    assert cookie["samesite"] == "strict"
    assert access.token not in got.headers["set-cookie"]
    assert stranger.get("/").text == "the page"
    # A browser withholds a strict cookie from a request that another site has begun: no redirection.
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    got = browser_of(access).get(access.address, headers=headers)
    assert got.status == 200
    assert 'http-equiv="refresh"' in got.text
    assert access.token not in got.text
    assert access.cookie in got.headers["set-cookie"]


def test_without_the_cookie_every_path_is_refused(stranger: AppBrowser, access: Access) -> None:
    """A token counts only where it is exchanged."""
    queries = ("", "?token=", "?token=wrong", "?once=", "?token=%FF%00", "?a=1&a=1")
    answers = [stranger.get(f"/{query}") for query in queries]
    assert {got.status for got in answers} <= {401, 403}
    assert not [got for got in answers if "the page" in got.text or "set-cookie" in got.headers]
    exchange = f"?token={access.token}"
    paths = ("/api/runs", "/page.js", "/nothing", f"/api/runs{exchange}")
    assert {stranger.get(path).status for path in paths} == {401}
    assert {stranger.request("POST", path, ORDER).status for path in ("/order", f"/{exchange}")} == {401}


def test_wrong_cookie_is_refused_and_a_second_one_does_not_hide_ours(
    user: AppBrowser, access: Access
) -> None:
    """Servers on other ports of this machine can set cookies that the browser also sends to this one."""
    ours = user.cookies[access.cookie]
    planted = {"Cookie": f"{access.cookie}={ours}; other=1; {access.cookie}=planted"}
    other = browser_of(access)
    assert other.get("/", headers=planted).status == 200
    assert other.get("/", headers={"Cookie": f"{access.cookie}=planted"}).status == 401
    assert other.get("/", headers={"Cookie": f"orch-1={ours}"}).status == 401
    assert Access("127.0.0.1", 7118).cookie != access.cookie


def test_code_for_a_browser_works_once_and_expires(access: Access) -> None:
    address = access.address_once()
    assert access.token not in address
    first, second = browser_of(access), browser_of(access)
    assert second.get("/?once=guessed").status == 403
    assert first.get(address).status == 303
    assert first.get("/").status == 200
    assert second.get(address).status == 403
    address = access.address_once()
    code, until = access._once or ("", 0.0)
    assert until < time.monotonic() + 120
    access._once = (code, time.monotonic())
    assert second.get(address).status == 403


def test_foreign_name_that_leads_here_is_refused(user: AppBrowser, access: Access) -> None:
    """DNS rebinding: a page of evil.example asks its own name, which now has the address 127.0.0.1.

    The names of a tunnel are served. A server for other machines knows its own names only.
    """
    foreign = ("evil.example", "evil.example:7117", "127.0.0.1.evil.example", "192.0.2.1")
    answers = {}
    for host in (*foreign, "localhost:9000", "127.0.0.1:9000", "[::1]:7117", "LOCALHOST"):
        cookie = f"{access.cookie}={user.cookies[access.cookie]}"
        answers[host] = user.get("/", headers={"Host": host, "Cookie": cookie})
    assert {host: got.status for host, got in answers.items()} == {
        host: 421 if host in foreign else 200 for host in answers
    }
    assert not [host for host in foreign if "the page" in answers[host].text]
    public = Access("0.0.0.0", 7117, names=frozenset({"node1"}))
    names = ("node1:7117", "192.0.2.1:7117", "evil.example")
    assert [public.knows_name(name) for name in names] == [True, True, False]


def test_request_of_another_origin_is_refused(user: AppBrowser) -> None:
    for origin in ("http://evil.example", "null", "http://127.0.0.1:8888"):
        assert user.request("POST", "/order", {**ORDER, "Origin": origin}).status == 403, origin
        assert user.get("/api/runs", headers={"Origin": origin}).status == 403, origin
    assert user.request("POST", "/order", {**ORDER, "Origin": ORIGIN}).status == 200


def test_page_of_another_server_cannot_load_anything(user: AppBrowser) -> None:
    """One of this machine belongs to the same site, so the browser sends the cookie."""
    modes = (("no-cors", "script"), ("cors", "empty"), ("navigate", "iframe"), ("navigate", "document"))
    for site, (mode, dest) in itertools.product(("cross-site", "same-site"), modes):
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
        statuses = [user.get(path, headers=headers).status for path in ("/", "/api/runs")]
        assert statuses == [200 if dest == "document" else 403, 403], headers


def test_order_of_a_form_is_refused(user: AppBrowser) -> None:
    """A form of any page can send a POST with the cookie, but no header."""
    wrong: tuple[dict[str, str], ...] = ({}, {"X-Orch": "0"}, {"X-Other": "1"})
    assert {user.request("POST", "/order", headers).status for headers in wrong} == {403}
    assert user.request("POST", "/order", ORDER).status == 200


def test_every_answer_has_a_strict_policy(user: AppBrowser, access: Access) -> None:
    expected = {
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }
    for path, browser in itertools.product(("/", "/api/runs", "/nothing"), (user, browser_of(access))):
        headers = browser.get(path).headers
        parts = headers["content-security-policy"].split("; ")
        policy = {name: value for name, _, value in (part.partition(" ") for part in parts)}
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert expected.items() <= headers.items()
        assert "access-control-allow-origin" not in headers


def test_refusal_shows_no_markup_of_the_request(stranger: AppBrowser) -> None:
    assert "<script" not in stranger.get("/", headers={"Host": "<script>alert(1)</script>"}).text


def test_secrets_are_compared_in_constant_time() -> None:
    """No secret is an operand of == or `in`: both stop at the first difference."""
    secret_names = {"token", "_session", "_once", "secret"}
    tree = ast.parse(inspect.getsource(access_module))
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
            parts |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            assert not parts & secret_names, ast.unparse(node)
    assert "compare_digest" in {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_secrets_are_long_and_not_shown(access: Access) -> None:
    assert len(access.token) >= 43
    assert access.token != Access("127.0.0.1", 7117).token
    assert access.token not in repr(access)
