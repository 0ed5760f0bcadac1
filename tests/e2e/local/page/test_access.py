"""Attacks on the server of `orch ui` by pages of the browser and by other servers of the machine."""

from __future__ import annotations

import ast
import inspect
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


def test_link_on_another_site_leads_to_the_page_without_a_redirect(
    stranger: AppBrowser, access: Access
) -> None:
    """A browser withholds a strict cookie from a request that another site has begun."""
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    got = stranger.get(access.address, headers=headers)
    assert got.status == 200
    assert 'http-equiv="refresh"' in got.text
    assert access.token not in got.text
    assert access.cookie in got.headers["set-cookie"]


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?once=", "?token=%FF%00", "?a=1&a=1"])
def test_without_the_token_nothing_is_shown(stranger: AppBrowser, query: str) -> None:
    got = stranger.get(f"/{query}")
    assert got.status in (401, 403)
    assert "the page" not in got.text
    assert "set-cookie" not in got.headers


@pytest.mark.parametrize("path", ["/api/runs", "/page.js", "/nothing"])
def test_without_the_cookie_every_path_is_refused(stranger: AppBrowser, path: str) -> None:
    assert stranger.get(path).status == 401
    assert stranger.request("POST", "/order", ORDER).status == 401


def test_token_counts_only_where_it_is_exchanged(stranger: AppBrowser, access: Access) -> None:
    assert stranger.get(f"/api/runs?token={access.token}").status == 401
    assert stranger.request("POST", f"/?token={access.token}", ORDER).status == 401


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


def test_code_for_a_browser_works_once(access: Access) -> None:
    address = access.address_once()
    assert access.token not in address
    first, second = browser_of(access), browser_of(access)
    assert second.get("/?once=guessed").status == 403
    assert first.get(address).status == 303
    assert first.get("/").status == 200
    assert second.get(address).status == 403


def test_code_for_a_browser_expires(access: Access) -> None:
    address = access.address_once()
    code, until = access._once or ("", 0.0)
    assert until < time.monotonic() + 120
    access._once = (code, time.monotonic())
    assert browser_of(access).get(address).status == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7117", "127.0.0.1.evil.example", "192.0.2.1"])
def test_foreign_name_that_leads_here_is_refused(user: AppBrowser, access: Access, host: str) -> None:
    """DNS rebinding: a page of evil.example asks its own name, which now has the address 127.0.0.1."""
    got = user.get("/", headers={"Host": host, "Cookie": f"{access.cookie}={user.cookies[access.cookie]}"})
    assert got.status == 421
    assert "the page" not in got.text


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1:9000", "[::1]:7117", "LOCALHOST"])
def test_names_of_a_tunnel_are_served(user: AppBrowser, access: Access, host: str) -> None:
    headers = {"Host": host, "Cookie": f"{access.cookie}={user.cookies[access.cookie]}"}
    assert user.get("/", headers=headers).status == 200


def test_server_for_other_machines_knows_its_own_names_only() -> None:
    access = Access("0.0.0.0", 7117, names=frozenset({"node1"}))
    assert access.knows_name("node1:7117")
    assert access.knows_name("192.0.2.1:7117")
    assert not access.knows_name("evil.example:7117")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:8888"])
def test_request_of_another_origin_is_refused(user: AppBrowser, origin: str) -> None:
    assert user.request("POST", "/order", {**ORDER, "Origin": origin}).status == 403
    assert user.get("/api/runs", headers={"Origin": origin}).status == 403
    assert user.request("POST", "/order", {**ORDER, "Origin": ORIGIN}).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_page_of_another_server_cannot_load_anything(user: AppBrowser, site: str) -> None:
    """One of this machine belongs to the same site, so the browser sends the cookie."""
    for mode, dest in (("no-cors", "script"), ("cors", "empty"), ("navigate", "iframe")):
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
        assert user.get("/", headers=headers).status == 403
        assert user.get("/api/runs", headers=headers).status == 403
    link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert user.get("/", headers=link).status == 200
    assert user.get("/api/runs", headers=link).status == 403


@pytest.mark.parametrize("headers", [{}, {"X-Orch": "0"}, {"X-Other": "1"}])
def test_order_of_a_form_is_refused(user: AppBrowser, headers: dict[str, str]) -> None:
    """A form of any page can send a POST with the cookie, but no header."""
    assert user.request("POST", "/order", headers).status == 403
    assert user.request("POST", "/order", ORDER).status == 200


@pytest.mark.parametrize("path", ["/", "/api/runs", "/nothing"])
def test_every_answer_has_a_strict_policy(user: AppBrowser, access: Access, path: str) -> None:
    for headers in (user.get(path).headers, browser_of(access).get(path).headers):
        parts = headers["content-security-policy"].split("; ")
        policy = {name: value for name, _, value in (part.partition(" ") for part in parts)}
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
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
