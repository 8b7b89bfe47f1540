"""Find the V-IPU server that a user means, in the order of the guide.

An option goes before a variable, a variable before the configuration files of the
vipu command: the user's, then the machine's. What a place says of a port, a user and an
access key counts for the server that it names, or for any if it names none, so that no
server gets the key of another.
"""

import os
import re
from collections.abc import Mapping
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

# The variables of the vipu command are its keys in capital letters: VIPU_CLI_API_HOST.
VARIABLE_PREFIX = "VIPU_CLI_"
KEYS = (
    "api-host",
    "api-port",
    "api-user-id",
    "api-access-key",
    "api-tls",
    "api-ca-cert",
)
_LINE = r"""\s*([A-Za-z][\w-]*)\s*=\s*(?:"([^"\\]*)"|([\w.:-]+))\s*(?:(?:\#|//).*)?"""
_MOST_CHARACTERS = 65536


# With -host, -port or -timeout the option of the user's command, for advice in errors.
POPRUN_OPTIONS = "--vipu-server"


class ServerAddress(NamedTuple):
    """Where a server is, how to speak with it, and who asks."""

    host: str
    port: int = DEFAULT_PORT
    user: str = ""
    access_key: str = ""
    tls: bool = False
    # A file with the certificates that the server's may be signed by; empty for those
    # that this machine trusts.
    ca_cert: str = ""
    # What named it: an option, a variable or a file.
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
        option_prefix: What the names of the options begin with.

    Raises:
        VipuRuleError: A value or a file is not valid.
    """
    given = {key: str(value) for key, value in options.items() if value}
    if "api-port" in given:
        given.setdefault("api-host", "")
    places = [("option", given), *_from_variables(environ)]
    if config_file is not None:
        values = read_config(config_file, option_prefix)
        places.insert(1, (os.fspath(config_file), values))
    else:
        places += _from_files(environ, system_file, option_prefix)
    named = [(origin, config) for origin, config in places if "api-host" in config]
    if not named:
        return None
    # A port alone is one of the host that another place names, if any.
    hosts = [config["api-host"] for _, config in named]
    host = next(filter(None, hosts), DEFAULT_HOST)
    values = {}
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


def _from_variables(environ: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Return what the variables of instances say, and those of the vipu command."""
    of_instances = {
        "api-host": environment.VIPU_API_HOST,
        "api-port": environment.VIPU_API_PORT,
    }
    of_vipu = {key: VARIABLE_PREFIX + key.upper().replace("-", "_") for key in KEYS}
    sources = []
    for names in (of_instances, of_vipu):
        values = {
            key: environ[name] for key, name in names.items() if environ.get(name)
        }
        if names is of_vipu or "api-host" in values:
            sources.append((names["api-host"], values))
    return sources


def _from_files(
    environ: Mapping[str, str], system_file: str | os.PathLike[str], option_prefix: str
) -> list[tuple[str, dict[str, str]]]:
    """Return what the user's files say, and then the machine's."""
    home = environ.get("HOME", "")
    names = USER_FILES if os.path.isabs(home) else ()
    paths = [*(os.path.join(home, name) for name in names), os.fspath(system_file)]
    return [
        (path, {key: word for key, word in config.items() if word})
        for path in filter(os.path.isfile, paths)
        for config in [read_config(path, option_prefix)]
    ]


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
