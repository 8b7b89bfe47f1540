"""The guide's machines: a vipu-server on 10.3.7.150, and clusters A8 and P8 on it."""

import shlex

import trustme
from beds.bed import Bed
from beds.host import HOMES, Host
from conftest import ROOT, wait_for

# The V-IPU server's address, then those of hosts with instances.
ADDRESSES = ("10.3.7.150", "10.3.7.153", "10.3.7.154", "10.3.8.153")
# P8 is one that the guide divides over two ILDs.
CLUSTERS = {
    "A8": ("--num-agents", "2"),
    "P8": ("--num-agents", "2", "--num-ilds", "2"),
}
SERVER_FILES = "/var/log/vipu"


def guide_bed() -> Bed:
    """Make a bed whose users may use the server, and find train.py in their HOME."""
    bed = Bed(
        names=["vipu", "host153", "host154", "pod2-host153"],
        addresses=ADDRESSES,
        shared_home=True,
    )
    try:
        _start_server(bed.front)
        for user, home in HOMES.items():
            _give_access(bed.front, user, home)
    except BaseException:
        bed.close()
        raise
    for host in bed.hosts:
        host.note_own()
    return bed


def _start_server(host: Host) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert(host.address)
    directory = host.path(SERVER_FILES)
    directory.mkdir()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    certificate.private_key_and_cert_chain_pem.write_to_path(str(directory / "key.pem"))
    words = [
        *("vipu-server", "--host", host.address, "--secure", "--pod", "none"),
        *("--tls-cert", "key.pem", "--tls-key", "key.pem", "--database", "vipu.db"),
    ]
    # It becomes a child of the host's init, as a daemon is.
    in_background = f"{shlex.join(words)} >server.log 2>&1 &"
    host.output("sh", "-c", in_background, cwd=SERVER_FILES)
    wait_for(lambda: "listens" in (directory / "server.log").read_text(), "vipu-server")
    with (directory / "admin.vipu-cli.hcl").open("a") as admin:
        admin.write(f'api-ca-cert = "{SERVER_FILES}/ca.pem"\n')
    for name, size in CLUSTERS.items():
        _administrate(host, "create", "cluster", name, *size)


def _give_access(host: Host, user: str, home: str) -> None:
    """Make a user of the server, with its configuration in HOME."""
    _administrate(host, "create", "user", user)
    directory = host.path(SERVER_FILES)
    access = (directory / f"{user}.vipu-cli.hcl").read_text()
    configuration = host.path(f"{home}/.vipu")
    configuration.mkdir()
    (configuration / "ca.pem").write_bytes((directory / "ca.pem").read_bytes())
    (configuration / "vipu-cli.hcl").write_text(
        f'{access}api-ca-cert = "{home}/.vipu/ca.pem"\n'
    )
    program = (ROOT / "examples" / "train.py").read_text()
    host.path(f"{home}/train.py").write_text(program)
    host.output("chown", "-R", f"{user}:", f"{home}/.vipu", f"{home}/train.py")


def _administrate(host: Host, *words: str) -> None:
    words = ("vipu-admin", "--config", "admin.vipu-cli.hcl", *words)
    host.output(*words, cwd=SERVER_FILES)
