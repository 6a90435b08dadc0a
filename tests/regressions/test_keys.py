"""Bug bank: routes are closed without the key."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from paxkv.cli.serve import _with_environment
from paxkv.server.middleware.auth import OPEN_PATHS, Keys, gather_keys
from paxkv.server.settings import ServerSettings
from tests.server.tiny_server import Client, TinyServer, chat, completion, serving

KEY, OTHER, ADMIN = "first-key-1234", "second-key-5678", "admin-key-9876"
SETTINGS = ServerSettings(api_key=[KEY, OTHER], admin_key=[ADMIN])


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def all_routes(server: TinyServer) -> list[tuple[str, str]]:
    """Method and path of every route, those of the framework included."""
    app = server.server.config.app
    found = [("GET", "/openapi.json"), ("GET", "/no-such-route")]
    for path, item in app.openapi()["paths"].items():
        found += [(method.upper(), path.replace("{name}", "x")) for method in item]
    assert len(found) > 10
    assert not any(
        isinstance(route, APIRoute) and not route.include_in_schema for route in app.routes
    )
    return found


def test_api_08_every_route_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = [{}, bearer("wrong"), bearer(""), {"Authorization": KEY}, bearer(KEY + "x"),
             {"Authorization": f"Basic {KEY}"}, bearer(KEY[:-1])]  # fmt: skip
    with serving(settings=SETTINGS) as server:
        for method, path in all_routes(server):
            body = completion() if method == "POST" else None
            if path in OPEN_PATHS:
                assert server.call(method, path).status == 200
                continue
            keys = [KEY, OTHER] if path.startswith("/admin/") else [ADMIN]
            for headers in [*wrong, *map(bearer, keys)]:
                reply = server.call(method, path, body, headers)
                assert reply.status == 401, (path, headers)
                assert reply.error["code"] == "invalid_api_key"
        for path in ("//v1/completions", "/v1/../v1/completions", "/V1/completions", "/health/"):
            assert server.post(path, completion()).status == 401
        for key in (KEY, OTHER):
            assert server.post("/v1/chat/completions", chat(), headers=bearer(key)).status == 200
        assert server.get("/v1/models", headers={"authorization": f"bearer {KEY}"}).status == 200
        assert server.get("/admin/stats", headers=bearer(ADMIN)).json()["running"] == 0
        assert server.post("/admin/reset_prefix_cache", {}, headers=bearer(ADMIN)).status == 200
        server.wait_idle()
    assert "request" in caplog.text
    assert not any(key in caplog.text for key in (KEY, OTHER, ADMIN, "the cat"))
    assert not any(key in repr(SETTINGS) for key in (KEY, OTHER, ADMIN))


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key with hmac.compare_digest, digests of one length, whether or not one has fitted."""
    compared: list[tuple[int, int]] = []
    own = hmac.compare_digest

    def note(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return own(one, other)

    monkeypatch.setattr("paxkv.server.middleware.auth.hmac.compare_digest", note)
    keys = Keys(["a", "b" * 500, "c"])
    for given in (b"Bearer a", b"Bearer c", b"Bearer x", b"Bearer ", b"Basic a", b"", b"b" * 9000):
        compared.clear()
        assert keys.opens(given) == (given in (b"Bearer a", b"Bearer c"))
        assert compared == [(32, 32)] * 3


def test_admin_routes_are_closed_without_an_admin_key(server: Client) -> None:
    for headers in ({}, bearer(""), bearer("x")):
        reply = server.get("/admin/stats", headers=headers)
        assert (reply.status, reply.error["code"]) == (403, "no_admin")


def test_keys_from_files_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n")
    assert gather_keys(["zero"], str(file), "api_key") == ("zero", "one", "two")
    monkeypatch.setenv("PAXKV_API_KEY", "a, b")
    monkeypatch.delenv("PAXKV_ADMIN_KEY", raising=False)
    assert _with_environment({"api_key": ["c"]}) == {"api_key": ["c", "a", "b"]}
    keys = Keys(["a", "b"])
    assert keys.opens(b"Bearer b")
    assert not keys.opens(b"Bearer c")
    for bad in (str(tmp_path / "absent"), str(tmp_path)):
        with pytest.raises(ValueError, match="api_key_file"):
            gather_keys(None, bad, "api_key")
    file.write_text("\n")
    with pytest.raises(ValueError, match="no key"):
        gather_keys(None, str(file), "api_key")
    with pytest.raises(ValueError, match="printable") as caught:
        gather_keys(["secret key"], None, "api_key")
    assert "secret" not in str(caught.value)
