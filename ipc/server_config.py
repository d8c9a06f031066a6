"""What can be configured of the doors to an engine: where clients attach, and the HTTP frontend.

Flags are made from these fields as from those of `config`.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .errors import ConfigError

_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s]+/?")

_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ListenConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where clients attach to an engine without HTTP, and who may."""

    listen: Annotated[str, Meta(description="Where clients attach: ipc:///path or tcp://host:port.")]
    curve_key: Annotated[
        str | None, Meta(description="File of the engine's secret key, for tcp://; `pagewire keys make` makes one.")
    ] = None
    allow_clients: Annotated[
        tuple[str, ...],
        Meta(description="File of a client's public key, or directory of such *.key files (may be repeated)."),
    ] = ()
    insecure: Annotated[
        bool, Meta(description="Allow tcp:// without keys: anyone who reaches the port may use the engine.")
    ] = False

    def __post_init__(self) -> None:
        if self.curve_key is not None and self.insecure:
            raise ConfigError("--curve-key and --insecure contradict each other; leave one of them out.")
        if self.curve_key is not None and not self.allow_clients:
            raise ConfigError("--curve-key alone lets nobody in; name the clients' public keys by --allow-clients.")
        if self.allow_clients and self.curve_key is None:
            raise ConfigError("--allow-clients needs the engine's own key as well; give --curve-key FILE.")


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP frontend."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "0.0.0.0"  # noqa: S104 - as usual manifests expect
    port: Annotated[int, Meta(description="Port to listen on.")] = 8000
    root_path: Annotated[
        str, Meta(description="Path in front of all routes, for a reverse proxy that passes it on, like /llm.")
    ] = ""
    uds: Annotated[str | None, Meta(description="Unix socket to listen on instead of host and port.")] = None
    api_server_count: Annotated[int, Meta(description="Frontend processes that share the port and the engine.")] = 1
    api_key: Annotated[tuple[str, ...], Meta(description="Bearer key that clients must send (may be repeated).")] = ()
    engine: Annotated[
        str | None, Meta(description="Attach to a running engine at this address instead of starting one.")
    ] = None
    engine_key: Annotated[
        str | None, Meta(description="File of that engine's public key, if it listens on tcp:// with keys.")
    ] = None
    curve_key: Annotated[
        str | None, Meta(description="File of this frontend's own secret key, which that engine must allow.")
    ] = None
    api_key_file: Annotated[
        str | None, Meta(description="File of bearer keys, one a line; lines that begin with # don't count.")
    ] = None
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(description="Web pages that may use the server from a browser (CORS), like https://a.example; * is any."),
    ] = ()
    allowed_methods: Annotated[
        tuple[str, ...], Meta(description="Methods that pages of other origins may use; * is any.")
    ] = ("*",)
    allowed_headers: Annotated[
        tuple[str, ...], Meta(description="Request headers that pages of other origins may send; * is any.")
    ] = ("*",)
    allow_credentials: Annotated[
        bool, Meta(description="Let pages of the allowed origins send cookies and client certificates.")
    ] = False
    ssl_certfile: Annotated[
        str | None, Meta(description="PEM file of the server's certificate and its chain; with it, HTTPS is served.")
    ] = None
    ssl_keyfile: Annotated[
        str | None, Meta(description="PEM file of the certificate's key, if --ssl-certfile does not hold it.")
    ] = None
    ssl_ca_certs: Annotated[
        str | None, Meta(description="PEM file of the authorities that clients' certificates are checked by.")
    ] = None
    ssl_cert_reqs: Annotated[
        int, Meta(description="Certificates of clients: 0 not asked for, 1 checked if they send one, 2 required.")
    ] = 0
    sse_keep_alive_interval: Annotated[
        float, Meta(description="Seconds without an event after which a stream gets a comment; 0: none.")
    ] = 15.0
    ui: Annotated[bool, Meta(description="Serve the web page at /; it holds no data and needs no key.")] = True
    disable_fastapi_docs: Annotated[bool, Meta(description="Serve neither /openapi.json nor /docs.")] = False
    request_timeout: Annotated[
        float | None,
        Meta(description="Seconds from its arrival that a request may take; its own `timeout` can only be shorter."),
    ] = None
    chat_template: Annotated[
        str | None, Meta(description="Jinja chat template, a file or the text itself, instead of the model's.")
    ] = None
    chat_template_content_format: Annotated[
        Literal["auto", "string", "openai"],
        Meta(description="What the template is given as content: a string, or a list of parts. auto: what it takes."),
    ] = "auto"
    default_chat_template_kwargs: Annotated[
        dict[str, Any] | None,  # Any: variables of templates
        Meta(description="Variables of the chat template, as JSON; a request's chat_template_kwargs win."),
    ] = None
    response_role: Annotated[str, Meta(description="Role of the answers to chats.")] = "assistant"
    tool_call_parser: Annotated[
        Literal["auto", "none", "hermes", "llama3_json", "mistral", "pythonic"],
        Meta(description="How the model writes calls of tools; auto: as its chat template shows."),
    ] = "auto"
    reasoning_parser: Annotated[
        Literal["auto", "none", "qwen3", "deepseek_r1"],
        Meta(description="How the model marks its reasoning; auto: as its chat template shows."),
    ] = "auto"
    trust_request_chat_template: Annotated[
        bool, Meta(description="Let requests bring a chat template of their own (`chat_template`).")
    ] = False
    enable_admin: Annotated[
        bool, Meta(description="Serve what administers the engine: /sleep, /pause, /abort_requests and others.")
    ] = False
    allow_runtime_lora_updating: Annotated[
        bool, Meta(description="Let clients load and unload LoRA adapters, from any directory of this machine.")
    ] = False
    enable_force_include_usage: Annotated[
        bool, Meta(description="Write the usage into each chunk of every stream, whether it is asked for or not.")
    ] = False
    return_tokens_as_token_ids: Annotated[
        bool, Meta(description="Name tokens by their ids, like token_id:7, in logprobs; a request may say otherwise.")
    ] = False
    max_stored_responses: Annotated[
        int, Meta(description="Responses of /v1/responses that are kept in memory, to go on from; 0 keeps none.")
    ] = 1000
    otlp_traces_endpoint: Annotated[
        str | None,
        Meta(description="Send a trace of each request to this OpenTelemetry collector, like http://127.0.0.1:4318."),
    ] = None
    disable_log_stats: Annotated[bool, Meta(description="No line of throughput figures every 10 s.")] = False
    enable_log_requests: Annotated[bool, Meta(description="Log each request.")] = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port {self.port} must be from 0 to 65535.")
        if self.api_server_count < 1:
            raise ConfigError(f"--api-server-count {self.api_server_count} must be at least 1.")
        if any(not key.strip() for key in self.api_key):
            raise ConfigError("--api-key must not be empty.")
        if self.request_timeout is not None and not 0 < self.request_timeout < math.inf:
            raise ConfigError(f"--request-timeout {self.request_timeout} must be a positive number of seconds.")
        if self.max_stored_responses < 0:
            raise ConfigError(f"--max-stored-responses {self.max_stored_responses} must not be negative; 0 keeps none.")
        if not 0 <= self.sse_keep_alive_interval < math.inf:
            raise ConfigError(
                f"--sse-keep-alive-interval {self.sse_keep_alive_interval} must be a positive number of seconds, or 0."
            )
        if self.root_path and not _ROOT_PATH.fullmatch(self.root_path):
            raise ConfigError(f"--root-path {self.root_path} must be a path like /llm: a slash in front, none behind.")
        if not _ROLE.fullmatch(self.response_role):
            raise ConfigError(f"--response-role {self.response_role!r} must be 1 to 64 letters, digits, '-' or '_'.")
        self._check_origins()
        self._check_tls()

    @property
    def needs_key(self) -> bool:
        """Whether clients need an API key."""
        return bool(self.api_key) or self.api_key_file is not None

    def _check_origins(self) -> None:
        for origin in self.allowed_origins:
            if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"--allowed-origins {origin} is no origin; give scheme://host or scheme://host:port without a path."
                )
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigError(
                "--allow-credentials with --allowed-origins * would hand them to every web page; name the origins."
            )

    def _check_tls(self) -> None:
        if self.ssl_cert_reqs not in (0, 1, 2):
            raise ConfigError(f"--ssl-cert-reqs {self.ssl_cert_reqs} must be 0, 1 or 2.")
        if self.ssl_certfile is None:
            for flag, is_given in (
                ("--ssl-keyfile", self.ssl_keyfile is not None),
                ("--ssl-ca-certs", self.ssl_ca_certs is not None),
                ("--ssl-cert-reqs", self.ssl_cert_reqs != 0),
            ):
                if is_given:
                    raise ConfigError(f"{flag} needs --ssl-certfile, the server's own certificate.")
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            raise ConfigError(f"--ssl-cert-reqs {self.ssl_cert_reqs} needs --ssl-ca-certs to check certificates by.")
        if (self.engine_key is None) != (self.curve_key is None):
            raise ConfigError(
                "--engine-key and --curve-key go together: give both, or none for an engine without keys."
            )
        if self.engine_key is not None and self.engine is None:
            raise ConfigError("--engine-key is for an engine that runs already; give its address by --engine.")
