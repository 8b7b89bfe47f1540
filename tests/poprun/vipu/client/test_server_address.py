"""Which server is meant: options, then variables, then configuration files."""

from pathlib import Path
from typing import Any

import pytest

from poprun.vipu.client import server_address
from poprun.vipu.client.server_address import ServerAddress, find_server, read_config
from poprun.vipu.errors import VipuRuleError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".vipu").mkdir()
    return tmp_path


def find(environ: dict[str, str] | None = None, **options: Any) -> ServerAddress | None:
    options.setdefault("system_file", Path("/nowhere/vipu-cli.hcl"))
    given = {f"api-{k}": options.pop(k) for k in ("host", "port") if k in options}
    return find_server(environ or {}, given, **options)


def test_nothing_names_a_server() -> None:
    assert find() is None
    assert find({"HOME": "/nowhere"}) is None


def test_the_order_is_that_of_the_guide(home: Path) -> None:
    system = home / "system.hcl"
    environ = {"HOME": str(home)}

    def host() -> str | None:
        found = find(environ, system_file=system)
        return found and found.host

    system.write_text('api-host = "10.0.0.1"\n')
    assert host() == "10.0.0.1"
    (home / ".vipu.hcl").write_text('api-host="10.0.0.2"\n')
    assert host() == "10.0.0.2"
    (home / ".vipu/vipu-cli.hcl").write_text('api-host="10.0.0.3"\n')
    assert host() == "10.0.0.3"
    environ["VIPU_CLI_API_HOST"] = "10.0.0.4"
    assert host() == "10.0.0.4"
    environ["IPUOF_VIPU_API_HOST"] = "10.0.0.5"
    assert host() == "10.0.0.5"
    found = find(environ, system_file=system, host="10.0.0.6")
    assert found == ServerAddress("10.0.0.6", 8090, tls=True)


def test_what_named_the_server_is_known(home: Path) -> None:
    file = home / ".vipu.hcl"
    file.write_text('api-host = "h"\n')

    def origin(environ: dict[str, str], **options: Any) -> str:
        found = find({"HOME": str(home)} | environ, **options)
        assert found is not None
        return found.origin

    assert origin({}) == str(file)
    assert origin({"VIPU_CLI_API_HOST": "h"}) == "VIPU_CLI_API_HOST"
    assert origin({"IPUOF_VIPU_API_HOST": "h"}) == "IPUOF_VIPU_API_HOST"
    assert origin({}, host="h") == "option"


def test_a_port_alone_means_the_server_that_there_is() -> None:
    assert find(port=9000) == ServerAddress("localhost", 9000)
    environ = {"VIPU_CLI_API_HOST": "127.0.0.1", "VIPU_CLI_API_PORT": "1"}
    found = find(environ, port=9000)
    assert found == ServerAddress("127.0.0.1", 9000)
    # The variables of an instance count together.
    assert find({"IPUOF_VIPU_API_PORT": "9000"}) is None


def test_everything_that_a_file_says_is_read(home: Path) -> None:
    file = home / "alice.vipu-cli.hcl"
    file.write_text(
        "# The server\n\n"
        'api-host = "[::1]"  # here\n'
        "api-port=9000 // a number\n"
        'api-user-id = "alice"\n'
        'api-access-key="a#b//c="\n'
        'api-tls = "yes"\n'
        'api-ca-cert = "/ca.pem"\n'
        'showjson = "yes"\n'
    )

    found = find({"VIPU_CLI_API_HOST": "other"}, config_file=file)

    assert found == ServerAddress(
        "::1", 9000, "alice", "a#b//c=", True, "/ca.pem", str(file)
    )
    assert str(found) == "[::1]:9000"


def test_no_server_gets_the_key_of_another(home: Path) -> None:
    file = home / ".vipu.hcl"
    file.write_text(
        'api-host = "10.0.0.1"\napi-port = "9000"\n'
        'api-user-id = "alice"\napi-access-key = "k"\n'
    )
    environ = {"HOME": str(home)}

    same, other = find(environ, host="10.0.0.1"), find(environ, host="10.0.0.2")

    assert same is not None
    assert (same.port, same.user, same.access_key) == (9000, "alice", "k")
    assert other == ServerAddress("10.0.0.2", tls=True)
    assert "k" not in repr(same).replace("10.0.0.1", "")


def test_a_users_key_goes_with_the_machines_server(home: Path) -> None:
    system = home / "system.hcl"
    system.write_text('api-host = "10.0.0.1"\n')
    (home / ".vipu.hcl").write_text('api-user-id = "alice"\napi-access-key = "k"\n')

    found = find({"HOME": str(home)}, system_file=system)

    assert found == ServerAddress("10.0.0.1", 8090, "alice", "k", True, "", str(system))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("api-host", "Line 1 of the V-IPU configuration file .* is not valid"),
        ('\napi-host = "a\n', "Line 2 "),
        ('api-host = "h1:8090"\n', "address alone: 'h1'. A port is given with"),
        ('api-host = "https://h1:8090/"\n', "address alone: 'h1'. A port is given"),
        ('api-host = "a b"\n', "'a b' is not the name or address of a host"),
        ('api-host = "h"\napi-port = "0"\n', "port of the V-IPU server is '0'"),
        ('api-host = "h"\napi-port = "x"\n', "port of the V-IPU server is 'x'"),
        ('api-host = "h"\napi-tls = "x"\n', "api-tls is 'x', but must be yes or no"),
        ('api-host = "h"\napi-user-id = "a"\n', "there is no access key"),
        (
            'api-host = "h"\napi-user-id = "a"\napi-access-key = "k"\napi-tls = "no"\n',
            "access key would be sent to the V-IPU server h:8090 in the clear",
        ),
    ],
)
def test_a_file_that_is_wrong_gets_a_sentence(
    home: Path, text: str, sentence: str
) -> None:
    file = home / "x.hcl"
    file.write_text(text)
    with pytest.raises(VipuRuleError, match=sentence):
        find(config_file=file)


def test_a_file_that_cannot_be_read_gets_a_sentence(home: Path) -> None:
    with pytest.raises(VipuRuleError, match="cannot be read: No such file"):
        read_config(home / "none.hcl")
    (home / "binary.hcl").write_bytes(b"\xff\xfe")
    with pytest.raises(VipuRuleError, match="cannot be read: it is no text"):
        read_config(home / "binary.hcl")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1"]
)
def test_this_machine_has_many_names(host: str) -> None:
    assert server_address.is_loopback(host)


@pytest.mark.parametrize(
    "host", ["localhost.evil.com", "127.0.0.1.evil.com", "10.0.0.1", ""]
)
def test_no_other_is_taken_for_it(host: str) -> None:
    assert not server_address.is_loopback(host)
