"""TLS: what is served through it, connections without a handshake, files that do not fit."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from paxkv.cli.main import main
from paxkv.server.limits import RequestLimits
from paxkv.server.settings import ServerSettings
from tests.server.tiny_server import TinyServer, serving

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def made(folder: Path, name: str) -> dict[str, str]:
    """Settings with a new certificate and its key."""
    files = {f"ssl_{kind}": str(folder / f"{name}-{kind}.pem") for kind in ("keyfile", "certfile")}
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    options = ["-addext", "subjectAltName=DNS:localhost", "-keyout", files["ssl_keyfile"]]
    command_line = [*command.split(), *options, "-out", files["ssl_certfile"]]
    subprocess.run(command_line, check=True, capture_output=True)
    return files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return made(tmp_path_factory.mktemp("tls"), "own")


def check_answers(server: TinyServer, files: dict[str, str]) -> None:
    trust = ssl.create_default_context(cafile=files["ssl_certfile"])
    url = f"https://localhost:{server.port}/v1/models"
    with urllib.request.urlopen(url, context=trust, timeout=10) as response:
        assert json.load(response)["object"] == "list"


def test_https(files: dict[str, str]) -> None:
    with serving(settings=ServerSettings(**files)) as server:
        check_answers(server, files)


def test_connections_without_a_handshake_count_and_end(files: dict[str, str]) -> None:
    limits = RequestLimits(max_connections=3, max_header_seconds=1.0)
    with serving(settings=ServerSettings(**files), limits=limits) as server, ExitStack() as held:
        connections = server.server.server_state.connections

        def silent() -> socket.socket:
            address = ("127.0.0.1", server.port)
            return held.enter_context(socket.create_connection(address, timeout=10))

        first = [silent() for _ in range(3)]
        server.wait_until(lambda: len(connections) == 3)
        assert silent().recv(1) == b""
        assert len(connections) == 3
        assert [each.recv(1) for each in first] == [b""] * 3
        server.wait_until(lambda: not connections)
        check_answers(server, files)
        server.wait_until(lambda: not connections)
        silent()
        server.wait_until(lambda: len(connections) == 1)  # which does not hold up the end


def test_files_that_do_not_fit_are_said_before_anything_is_loaded(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = made(tmp_path, "other")
    absent = str(tmp_path / "absent.pem")
    for wrong, named in (
        ({"ssl_certfile": absent}, absent),
        ({"ssl_keyfile": absent}, absent),
        ({"ssl_keyfile": other["ssl_keyfile"]}, other["ssl_keyfile"]),
        ({"ssl_certfile": __file__}, __file__),
    ):
        given = {**files, **wrong}
        flags = [f"--{name.replace('_', '-')}={file}" for name, file in given.items()]
        assert main(["serve", "--model", "no-such-model", "--port", "0", *flags]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "--" + next(iter(wrong)).replace("_", "-") in line
        assert named in line
    with pytest.raises(ValueError, match="go together"):
        ServerSettings(ssl_keyfile=files["ssl_keyfile"])
