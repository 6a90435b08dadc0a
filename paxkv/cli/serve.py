"""`paxkv serve`: the OpenAI-compatible server."""

from __future__ import annotations

import argparse
import os
from typing import Any

from paxkv.cli.command_parser import CommandParser
from paxkv.cli.engine_flags import add_engine_flags, engine_arguments

SUMMARY = "serve a model over HTTP, with OpenAI's API"


def add_arguments(parser: CommandParser) -> None:
    from paxkv.cli.dataclass_flags import add_dataclass_flags
    from paxkv.server.limits import RequestLimits
    from paxkv.server.settings import ServerSettings

    parser.usage = "paxkv serve MODEL [options]"
    add_dataclass_flags(parser, ServerSettings, "server")
    add_dataclass_flags(parser, RequestLimits, "limits of a request")
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    from paxkv.cli.dataclass_flags import given_values
    from paxkv.server.limits import RequestLimits
    from paxkv.server.settings import ServerSettings

    settings = ServerSettings(**_with_environment(given_values(args, ServerSettings)))
    limits = RequestLimits(**given_values(args, RequestLimits))
    from paxkv.server.middleware.request_log import configure_logging
    from paxkv.server.middleware.tls import tls_context
    from paxkv.server.running import listen, serve

    configure_logging(settings.log_format == "json", settings.log_level)
    settings.keys()  # files that cannot be used are said before the model is loaded
    tls_context(settings)

    sockets = [listen(settings.host, settings.port)]
    from paxkv.llm import LLM
    from paxkv.server.app import build_app

    llm = LLM(args.model, **engine_arguments(args))
    return serve(build_app(llm, settings, limits, name=str(args.model)), sockets)


def _with_environment(values: dict[str, Any]) -> dict[str, Any]:
    """Settings with the keys of the environment; several are separated by commas."""
    for name in ("api_key", "admin_key"):
        keys = os.environ.get(f"PAXKV_{name.upper()}", "").split(",")
        given = [*(values.get(name) or ()), *(key.strip() for key in keys if key.strip())]
        if given:
            values[name] = given
    return values
