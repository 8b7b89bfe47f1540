"""Find the V-IPU server that a user means, in the order of the guide.

An option goes before a variable, a variable before the configuration files of the
vipu command: the user's, then the machine's. A port, a user and an access key count for
the server named beside them, or for any server if none is named there. So no server
gets another server's key.
"""

import os
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from popdist import environment
from poprun.vipu.errors import VipuRuleError
from poprun.vipu.rules.checks import check_host
from poprun.words import FALSE_WORDS, TRUE_WORDS

DEFAULT_HOST = "localhost"
DEFAULT_PORT = 8090
SYSTEM_FILE = "/etc/vipu/vipu-cli.hcl"
# In the home directory.
USER_FILES = (".vipu/vipu-cli.hcl", ".vipu.hcl")

# The variables of instances, and of the vipu command, by key.
INSTANCE_VARIABLES = {
    "api-host": environment.VIPU_API_HOST,
    "api-port": environment.VIPU_API_PORT,
}
KEYS = (
    "api-host",
    "api-port",
    "api-user-id",
    "api-access-key",
    "api-tls",
    "api-ca-cert",
)
COMMAND_VARIABLES = {key: f"VIPU_CLI_{key.upper().replace('-', '_')}" for key in KEYS}
_LINE = r"""\s*([A-Za-z][\w-]*)\s*=\s*(?:"([^"\\]*)"|([\w.:-]+))\s*(?:(?:\#|//).*)?"""
_MOST_CHARACTERS = 65536


# With -host, -port or -timeout the option of the user's command, for advice in errors.
POPRUN_OPTIONS = "--vipu-server"


class ServerAddress(NamedTuple):
    """The place of a server, its encryption, and the user of the requests."""

    host: str
    port: int = DEFAULT_PORT
    user: str = ""
    access_key: str = ""
    tls: bool = False
    # A file with the certificates of trusted authorities; empty for the machine's own.
    ca_cert: str = ""
    # Where it was named: "option", a variable or a file.
    origin: str = "option"
    option_prefix: str = POPRUN_OPTIONS

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __repr__(self) -> str:
        return f"ServerAddress({self}, {self.origin})"  # without the access key


def find_server(
    environ: Mapping[str, str],
    options: Mapping[str, object] = MappingProxyType({}),
    *,
    config_file: str | os.PathLike[str] | None = None,
    system_file: str | os.PathLike[str] = SYSTEM_FILE,
    option_prefix: str = POPRUN_OPTIONS,
) -> ServerAddress | None:
    """Return the server that options, variables or files name; None if none does.

    Args:
        environ: The variables.
        options: The values of the options that were given, by key. A port alone means
            this machine.
        config_file: A file in place of the user's and the machine's.
        system_file: The machine's file.
        option_prefix: The start of the names of the options.

    Raises:
        VipuRuleError: A value or a file is not valid.
    """
    given = {key: str(value) for key, value in options.items() if value}
    if "api-port" in given:
        given.setdefault("api-host", "")
    places = [
        ("option", given),
        *_places(environ, config_file, system_file, option_prefix),
    ]
    named = [(origin, config) for origin, config in places if "api-host" in config]
    if not named:
        return None
    # A port alone is one of the host that another place names, if any.
    hosts = [config["api-host"] for _, config in named]
    host = next(filter(None, hosts), DEFAULT_HOST)
    values: dict[str, str] = {}
    for _, config in reversed(places):
        if config.get("api-host", "") in ("", host):
            values |= config
    return _checked(values | {"api-host": host}, named[0][0], option_prefix)


def read_config(
    path: str | os.PathLike[str], option_prefix: str = POPRUN_OPTIONS
) -> dict[str, str]:
    """Return what a configuration file of the vipu command says: key = "value" lines.

    Raises:
        VipuRuleError: It cannot be read, or a line is not understood.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise VipuRuleError(
            f"The V-IPU configuration file {path} cannot be read: {why}. Correct it, "
            f"or name the server with {option_prefix}-host."
        ) from error
    values = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith(("#", "//")):
            continue
        match = re.fullmatch(_LINE, line)
        if match is None:
            raise VipuRuleError(
                f"Line {number} of the V-IPU configuration file {path} is not valid. "
                'Write each line as: api-host = "NAME".'
            )
        key, quoted, bare = match.groups()
        values[key] = bare if quoted is None else quoted
    return values


def is_loopback(host: str) -> bool:
    """Return whether a name or address means this machine only."""
    word = host.strip("[]").lower()
    return word in ("localhost", "::1") or bool(
        re.fullmatch(r"127\.\d{1,3}\.\d{1,3}\.\d{1,3}", word)
    )


def _places(
    environ: Mapping[str, str],
    config_file: str | os.PathLike[str] | None,
    system_file: str | os.PathLike[str],
    option_prefix: str,
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the values of files and variables, by key, with their place."""
    if config_file is not None:
        yield os.fspath(config_file), read_config(config_file, option_prefix)
    instance = _set_variables(environ, INSTANCE_VARIABLES)
    if "api-host" in instance:
        yield environment.VIPU_API_HOST, instance
    yield COMMAND_VARIABLES["api-host"], _set_variables(environ, COMMAND_VARIABLES)
    home = environ.get("HOME", "")
    names = USER_FILES if os.path.isabs(home) else ()
    files = (*(os.path.join(home, name) for name in names), os.fspath(system_file))
    for path in filter(os.path.isfile, files if config_file is None else ()):
        config = read_config(path, option_prefix)
        yield path, {key: value for key, value in config.items() if value}


def _set_variables(
    environ: Mapping[str, str], names: Mapping[str, str]
) -> dict[str, str]:
    """Return the values of the variables that are set, by key."""
    return {key: environ[name] for key, name in names.items() if environ.get(name)}


def _checked(
    values: Mapping[str, str], origin: str, option_prefix: str
) -> ServerAddress:
    host = values["api-host"].strip().removeprefix("[").removesuffix("]")
    url = re.fullmatch(r"(?:https?://)?([^:/]+)(?::[0-9]+)?/?", host)
    if url is not None and url[1] != host:
        raise VipuRuleError(
            f"The host of the V-IPU server is {host[:80]!r}, but must be its name or "
            f"address alone: {url[1][:64]!r}. A port is given with "
            f"{option_prefix}-port or api-port."
        )
    check_host(host)
    port = values.get("api-port", str(DEFAULT_PORT))
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise VipuRuleError(
            f"The port of the V-IPU server is {port[:40]!r}, but must be from 1 to "
            "65535."
        )
    tls = values.get("api-tls", "no" if is_loopback(host) else "yes").lower()
    if tls not in (*TRUE_WORDS, *FALSE_WORDS):
        raise VipuRuleError(f"api-tls is {tls[:40]!r}, but must be yes or no.")
    address = ServerAddress(
        host=host,
        port=int(port),
        user=values.get("api-user-id", ""),
        access_key=values.get("api-access-key", ""),
        tls=tls in TRUE_WORDS,
        ca_cert=values.get("api-ca-cert", ""),
        origin=origin,
        option_prefix=option_prefix,
    )
    if address.access_key and not address.tls and not is_loopback(host):
        raise VipuRuleError(
            f"The access key would be sent to the V-IPU server {address} in the clear. "
            'Remove api-tls = "no", or the access key.'
        )
    if bool(address.user) != bool(address.access_key):
        raise VipuRuleError(
            f"For the V-IPU server {address} there is "
            f"{'no access key' if address.user else 'no user'}. Give both, api-user-id "
            "and api-access-key, or neither."
        )
    return address
