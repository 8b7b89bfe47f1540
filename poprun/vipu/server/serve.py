"""The vipu-server command: serve an inventory of emulated IPUs until SIGTERM."""

import logging
import os
import resource
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from poprun import __version__
from poprun.errors import PoprunError
from poprun.texts.click_program import Seconds, carry_out
from poprun.vipu.client.server_address import DEFAULT_PORT, ServerAddress, is_loopback
from poprun.vipu.client.user_file import create_user
from poprun.vipu.errors import InventoryUnavailableError, VipuRuleError
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.inventory.location import VARIABLE, find_server_inventory
from poprun.vipu.rules import presets
from poprun.vipu.server.application import SWEEP_S, Service
from poprun.vipu.server.http_server import BACKLOG, HttpServer, Listener

# Descriptors that are not connections.
SPARE_DESCRIPTORS = 64
NO_POD = "none"
FIRST_ADMIN = "admin"
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", help="The address to listen on."
)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    help="The port; 0 for a free one.",
)
@click.option(
    "--database",
    type=_FILE,
    help="The file with the inventory. It is created if it does not exist. By default "
    "it is in the home directory, one for each host and port.",
)
@click.option(
    "--pod",
    type=click.Choice([*presets.PODS, NO_POD]),
    default="pod64",
    metavar="POD",
    help="The pod in a new inventory, from pod4 to pod65536; none for no cluster.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="Require users' access keys. The first administrator's key is written to a "
    "file next to the inventory.",
)
@click.option(
    "--tls-cert",
    type=_FILE,
    help="The server's certificate with its issuers' certificates, in PEM.",
)
@click.option(
    "--tls-key", type=_FILE, help="The private key of the certificate, in PEM."
)
@click.option(
    "--timeout",
    metavar="TIME",
    type=Seconds(0.1, 600),
    default=10.0,
    help="How long to wait while another process keeps the inventory locked.",
)
@click.option("--access-log", is_flag=True, help="Log each request.")
@click.version_option(__version__, prog_name="vipu-server")
def serve(
    host: str,
    port: int,
    database: Path | None,
    pod: str,
    secure: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    timeout: float,
    access_log: bool,
) -> None:
    """Serve an inventory of emulated IPUs to several hosts and users.

    Beyond this machine it listens only with --secure, --tls-cert and --tls-key.
    """
    _check_exposure(host, secure, tls_cert, tls_key)
    context = None if tls_cert is None else _tls_context(tls_cert, tls_key)
    level = logging.INFO if access_log else logging.WARNING
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=level)
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    path = database or Path(
        find_server_inventory(os.environ, socket.gethostname(), port)
    )
    is_new = not path.exists()
    # No holder's host has an empty name: two machines may have one name, so a holder
    # under another boot is not known to be gone.
    opened = EmbeddedInventory(
        path, host="", timeout_s=timeout, strict=True, longest_step_s=2 * SWEEP_S
    )
    with closing(opened) as inventory:
        if is_new and pod != NO_POD:
            inventory.create_cluster(presets.preset(pod))
        if secure:
            address = ServerAddress(host, port, tls=tls_cert is not None)
            _make_first_admin(inventory, path, address)
        service = Service(
            inventory, secure=secure, local=is_loopback(host) and not secure
        )
        start_line = _start_line(listener, path, secure, tls_cert)
        limited = Listener(listener, _most_connections())
        HttpServer(
            service, limited, start_line, context=context, access_log=access_log
        ).run()


def main(argv: Sequence[str] | None = None) -> int:
    """Run vipu-server, and return its exit code.

    Args:
        argv: None for sys.argv.
    """
    return carry_out(serve, "vipu-server", argv, code_of=_code_of)


def _code_of(error: PoprunError) -> int:
    # The place of a user's inventory is named by the variable, a server's is not.
    error.args = (str(error).replace(VARIABLE, "--database"),)
    return error.exit_code


def _make_first_admin(
    inventory: EmbeddedInventory, database: Path, address: ServerAddress
) -> None:
    """Make an administrator if there is none, with a configuration file for vipu."""
    if any(user.is_admin for user in inventory.list_users()):
        return
    path = database.with_name(f"{FIRST_ADMIN}.vipu-cli.hcl")
    try:
        path.unlink(missing_ok=True)
        create_user(inventory, path, address, FIRST_ADMIN, is_admin=True)
    except OSError as error:
        raise InventoryUnavailableError(
            f"The access key of the first administrator cannot be written to {path}: "
            f"{error.strerror}. Name a file in a writable directory with --database."
        ) from error


def _check_exposure(
    host: str, secure: bool, tls_cert: Path | None, tls_key: Path | None
) -> None:
    if bool(tls_cert) != bool(tls_key):
        raise VipuRuleError("TLS needs both --tls-cert and --tls-key. Give both.")
    if not is_loopback(host) and not (secure and tls_cert):
        raise VipuRuleError(
            f"At {host} other machines could connect, so vipu-server listens there "
            "only with --secure, --tls-cert and --tls-key; without them, listen at "
            "127.0.0.1."
        )


def _tls_context(tls_cert: Path, tls_key: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An empty password in place of a question on the terminal.
        context.load_cert_chain(tls_cert, tls_key, password="")
    except OSError as error:  # ssl.SSLError is one
        raise VipuRuleError(
            f"The certificate {tls_cert} with the key {tls_key} cannot be used: "
            f"{error.strerror or error}. Give a certificate and its key, without a "
            "password, in PEM."
        ) from error
    return context


def _listen(host: str, port: int) -> socket.socket:
    name = host.removeprefix("[").removesuffix("]")
    try:
        family = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((name, port), family=family, backlog=BACKLOG)
    except OSError as error:
        # create_server appends the address; a name that is not found has no errno.
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror
        raise VipuRuleError(
            f"The server cannot listen at {host}:{port}: {why}. Choose another with "
            "--host or --port."
        ) from error


def _most_connections() -> int:
    """Return the most connections, for which the process may open more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(1, max(soft, wanted) - SPARE_DESCRIPTORS)


def _start_line(
    listener: socket.socket, path: Path, secure: bool, tls_cert: Path | None
) -> str:
    address = ServerAddress(*listener.getsockname()[:2])
    access = "TLS and access keys" if tls_cert else "access keys"
    return (
        f"vipu-server {__version__} listens at {'https' if tls_cert else 'http'}://"
        f"{address} ({access if secure else 'no access keys'}); inventory {path}"
    )


if __name__ == "__main__":
    sys.exit(main())
