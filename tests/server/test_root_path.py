"""Behind a path prefix: one server, whether its proxy removes the prefix or leaves it on."""

from __future__ import annotations

import re

import pytest

from paxkv.server.settings import ServerSettings
from tests.server.prefix_proxy import PREFIX, prefix_proxy
from tests.server.tiny_server import Client, TinyServer, chat, lent_model, serving

KEYS = {"api_key": ["an-api-key"], "admin_key": ["an-admin-key"]}
API = {"Authorization": "Bearer an-api-key"}


def links(page: bytes) -> list[str]:
    return re.findall(r'(?:href|src)="([^"]*page/[^"]*)"', page.decode())


def test_the_links_of_the_page_are_relative(server: TinyServer) -> None:
    """Pins: absolute links, which leave a proxy's prefix and show nothing."""
    found = links(server.get("/").content)
    assert len(found) == 2
    assert all(link.startswith("page/") for link in found)


@pytest.mark.parametrize("strip", [True, False])
def test_a_proxy_with_and_without_the_prefix(strip: bool) -> None:
    """Pins: a server that knows only one kind of proxy, or no probes without one."""
    settings = ServerSettings(root_path=PREFIX)
    with serving(settings=settings) as server, prefix_proxy(server.port, strip=strip) as proxy:
        outside = Client(proxy.port)
        for page in (PREFIX, f"{PREFIX}/"):
            found = links(outside.get(page).content)
            assert len(found) == 2
            assert all(outside.get(link).status == 200 for link in found)
        assert outside.get(f"{PREFIX}/v1/models").json()["data"][0]["id"] == "tiny"
        assert outside.post(f"{PREFIX}/v1/chat/completions", chat()).status == 200
        document = outside.get(f"{PREFIX}/openapi.json").json()
        assert document["servers"] == [{"url": PREFIX}]
        assert outside.get(f"{PREFIX}/nothing").status == 404
        assert outside.get(f"{PREFIX}x/health").status == 404
        assert server.get("/health").status == 200


def test_keys_hold_below_the_prefix() -> None:
    """Pins: a guard and a router that take the prefix off differently, or a different number of
    times, so that a path is open for the one and a route for the other."""
    settings = ServerSettings(root_path="/llm", **KEYS)
    with serving(settings=settings) as server:
        for prefix in ("", "/llm"):
            assert server.get(f"{prefix}/health").status == 200
            assert server.get(f"{prefix}/").status == 200
            assert server.get(f"{prefix}/page/state").status == 401
            assert server.get(f"{prefix}/v1/models").status == 401
            assert server.get(f"{prefix}/v1/models", headers=API).status == 200
            assert server.get(f"{prefix}/admin/stats", headers=API).status == 401
        for path in ("/llm/llm/admin/stats", "/llm//admin/stats", "//llm/admin/stats"):
            assert server.get(path, headers=API).status == 404
            assert server.get(path).status == 401
        for path in ("/llm/llm/health", "/llm/health/../v1/models", "/%6Clm/v1/models"):
            assert server.get(path).status == 401


@pytest.mark.parametrize(
    "wrong", ["llm", "/llm/", "/", "/a//b", "/a b", "/%6C", "/..", "/a/./b", "/a?b", "/é", 5, None]
)
def test_a_wrong_prefix_is_named(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"root_path=.* must be a path such as '/llm'"):
        ServerSettings(root_path=wrong)  # type: ignore[arg-type]


def test_right_prefixes() -> None:
    for right in ("", "/llm", "/team-a/models/smol.2", "/...", "/~me"):
        assert ServerSettings(root_path=right).root_path == right


@pytest.mark.parametrize("taken", ["/v1", "/page", "/health", "/admin"])
def test_a_prefix_that_is_a_route_is_refused(taken: str) -> None:
    """Pins: /v1/models meaning two things."""
    from paxkv.server.app import build_app

    with pytest.raises(ValueError, match=f"root_path='{taken}' must not be the beginning"):
        build_app(lent_model(), ServerSettings(root_path=taken))


def test_it_is_an_option_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    from paxkv.cli.main import main

    assert main(["serve", "--model", "nothing", "--root-path", "llm/"]) == 2
    assert "--root-path='llm/' must be a path" in capsys.readouterr().err
