"""ServerSettings: options of `paxkv serve` besides the engine's and the limits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from paxkv.server.middleware.auth import Keys, gather_keys

# Of what no proxy encodes; "." and ".." are for browsers to resolve.
ROOT_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)*")


@dataclass(frozen=True)
class ServerSettings:
    """Options of a server. Raises ValueError naming a wrong value.

    host: address to listen on; 0.0.0.0 for every interface.
    port: 0 takes a free one.
    served_model_name: what the model is called in requests, by default as in --model. Repeat it
        for several names.
    chat_template: used instead of the model's own; Jinja text or the path of a file.
    tool_call_parser: the form of tool calls in answers; "auto" takes the one that the chat template
        teaches.
    allow_additional_properties: leave objects open in the schemas of tools and response_format
        that say nothing of additionalProperties and are not strict.
    max_num_queued_reqs: sequences (n of a request) that may wait while all slots are taken; beyond
        it the answer is 503.
    max_num_queued_tokens: tokens of their prompts.
    max_queue_wait: seconds a request may wait to be scheduled; then the answer is 503.
    shutdown_grace: seconds that running requests get to end after SIGTERM.
    health_stall_seconds: /health is 503 while a step has been running for so long.
    api_key: needed for every route but /health, /metrics, /version and the page's files. Repeat
        it for several; a file, or the environment variable PAXKV_API_KEY, keeps them out of the
        process list.
    api_key_file: more of them, one a line.
    admin_key: needed for the routes under /admin/, which are closed without one (PAXKV_ADMIN_KEY).
    admin_key_file: more of them, one a line.
    ssl_certfile: certificate chain (PEM), for HTTPS. ssl_keyfile: its private key (PEM),
        without a passphrase.
    root_path: path prefix under which a reverse proxy serves this server, such as /llm; the proxy
        may remove it or leave it on.
    allowed_origins: origins that pages may call the server from; by default none. Repeat it.
    otlp_traces_endpoint: URL of an OpenTelemetry collector (OTLP over HTTP) that gets a span for
        each request; by default none. Needs the extra `otel`.
    log_format: of the lines on standard error.
    log_level: of what is logged.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: Sequence[str] | None = None
    chat_template: str | None = None
    tool_call_parser: Literal["auto", "hermes", "llama3_json"] = "auto"
    allow_additional_properties: bool = False
    max_num_queued_reqs: int = 1024
    max_num_queued_tokens: int = 1_000_000
    max_queue_wait: float = 120.0
    shutdown_grace: float = 30.0
    health_stall_seconds: float = 120.0
    api_key: Sequence[str] | None = field(default=None, repr=False)
    api_key_file: str | None = None
    admin_key: Sequence[str] | None = field(default=None, repr=False)
    admin_key_file: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    root_path: str = ""
    allowed_origins: Sequence[str] | None = None
    otlp_traces_endpoint: str | None = None
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        if (
            isinstance(self.port, bool)
            or not isinstance(self.port, int)
            or not 0 <= self.port < 65536
        ):
            raise ValueError(f"port={self.port!r} must be an integer from 0 to 65535")
        for name, low in (
            ("max_num_queued_reqs", 1),
            ("max_num_queued_tokens", 1),
            ("max_queue_wait", 0.001),
            ("shutdown_grace", 0),
            ("health_stall_seconds", 0.001),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= low:
                raise ValueError(f"{name}={value!r} must be a number of at least {low}")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("ssl_certfile and ssl_keyfile go together")
        if not isinstance(self.root_path, str) or not ROOT_PATH.fullmatch(self.root_path):
            raise ValueError(
                f"root_path={self.root_path!r} must be a path such as '/llm': a slash before each "
                "part and none at the end; letters, digits, '.', '_', '~' and '-'"
            )
        endpoint = self.otlp_traces_endpoint
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ValueError(
                f"otlp_traces_endpoint={endpoint!r} must begin with http:// or https://"
            )
        for name in ("api_key", "admin_key"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a list of keys")

    def keys(self) -> tuple[Keys, Keys]:
        """Keys of the API and of the admin routes. Raises ValueError if a file cannot be used."""
        return (
            Keys(gather_keys(self.api_key, self.api_key_file, "api_key")),
            Keys(gather_keys(self.admin_key, self.admin_key_file, "admin_key")),
        )
