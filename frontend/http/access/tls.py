"""HTTPS: the server's certificate, and those it asks of its clients."""

from __future__ import annotations

import ssl

from pagewire.ipc.errors import ConfigError
from pagewire.ipc.server_config import ServerConfig


def load_tls(config: ServerConfig) -> ssl.SSLContext | None:
    """Return how connections are encrypted; None for plain HTTP.

    Raises:
        ConfigError: a file is missing, is no PEM file, needs a password, or key and certificate don't belong together.
    """
    if config.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)  # TLS 1.2 and later
    context.set_alpn_protocols(["http/1.1"])
    flags = f"--ssl-certfile {config.ssl_certfile}"
    if config.ssl_keyfile is not None:
        flags += f" with --ssl-keyfile {config.ssl_keyfile}"
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=_refuse_password)
        if config.ssl_ca_certs is not None:
            flags = f"--ssl-ca-certs {config.ssl_ca_certs}"
            context.load_verify_locations(config.ssl_ca_certs)
    except ssl.SSLError as exc:
        raise ConfigError(
            f"{flags} can't be used ({exc.reason or 'not a PEM file'}); give PEM files that belong together."
        ) from exc
    except OSError as exc:
        raise ConfigError(f"{flags} can't be read: {exc.strerror}.") from exc
    context.verify_mode = ssl.VerifyMode(config.ssl_cert_reqs)
    return context


def _refuse_password() -> str:
    # Without this, OpenSSL would ask for it on the terminal and wait.
    raise ConfigError(
        "The key of --ssl-certfile is encrypted; give one without a password, readable by this user alone."
    )
