"""What the commands accept: words, places of options, and what they refuse."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from vipu_commands import Run

from poprun import __version__

Make = Callable[..., None]


@pytest.mark.parametrize("what", ["partition", "partitions"])
def test_a_noun_may_be_singular_or_plural(make: Make, run: Run, what: str) -> None:
    make("vipu create partitions p1 --size 4")

    assert "p1" in run(f"vipu list {what}").out
    assert "p1" in run(f"vipu get {what} p1").out
    assert run(f"vipu delete {what} p1").out == "remove partition (p1): success.\n"


@pytest.mark.parametrize(
    "line",
    [
        "vipu --json list partitions",
        "vipu list --json partitions",
        "vipu list partitions --json",
        "vipu -a --showjson list partition",
        "vipu list partitions --json=true",
    ],
)
def test_a_global_option_stands_anywhere(make: Make, run: Run, line: str) -> None:
    make("vipu create partition p1 --size 4")

    [entry] = json.loads(run(line).out)
    assert entry["partition"]["id"] == "p1"


def test_the_server_of_an_option_goes_before_that_of_a_variable(
    run: Run, environ: dict[str, str]
) -> None:
    environ["VIPU_CLI_API_HOST"] = "127.0.0.1"
    environ["VIPU_CLI_API_PORT"] = "1"

    assert "at 127.0.0.1:1, " in run("vipu list partitions").err
    assert "at 127.0.0.2:2" in run("vipu list -H 127.0.0.2 partitions --api-port 2").err


def test_a_configuration_file_names_the_server(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.hcl"
    file.write_text('api-host = "127.0.0.3"\napi-port = "3"\n')

    result = run(f"vipu list partitions --config {file}")

    assert "at 127.0.0.3:3, " in result.err
    assert (result.code, result.out) == (1, "")


def test_a_flag_may_have_a_value(make: Make, run: Run) -> None:
    make(
        "vipu create partition p1 --size 4 --reconfigurable=true",
        "vipu create partition p2 --reconfigurable=false --size=4",
    )

    kinds = [
        entry["partition"]["spec"]["reconfigurable"]
        for entry in json.loads(run("vipu list partitions --json").out)
    ]
    assert kinds == [True, False]
    result = run("vipu create partition p3 --size 4 --reconfigurable=perhaps")
    assert (result.code, result.out) == (2, "")
    assert "'perhaps' is neither true nor false" in result.err


def test_every_option_of_a_partition_has_its_effect(make: Make, run: Run) -> None:
    make(
        "vipu-admin create cluster c128 --preset pod128",
        "vipu-admin create allocation a1 --agents ag0,ag1",
        "vipu create partition p1 --size 32 --cluster c128 --num-gcds 4 --num-ilds 2 "
        "--total-num-replicas 8 --routing SWNC --gw-routing default "
        "--sync-type ST_POD_NATIVE_DEFAULT --index 1",
        "vipu create partition p2 --size 8 --allocation a1 --gcd-sync-replicas 2",
    )

    first, second = (
        entry["partition"]["spec"]
        for entry in json.loads(run("vipu list partitions --json").out)
    )
    assert first == {
        "size": 32,
        "ipus": [
            f"ag{agent}:{ipu}"
            for agent in (4, 5, 6, 7, 20, 21, 22, 23)
            for ipu in range(4)
        ],
        "num_ilds": 2,
        "num_gcds": 4,
        "ipus_per_gcd": 8,
        "num_replicas": 8,
        "reconfigurable": False,
        "routing": "SWNC",
        "gw_routing": "DEFAULT",
        "sync_type": "ST_POD_NATIVE_DEFAULT",
        "cluster": "c128",
        "allocation": "c128",
    }
    assert (second["allocation"], second["num_replicas"]) == ("a1", 2)


def test_without_a_cluster_the_first_partition_makes_a_pod(run: Run) -> None:
    assert run("vipu create partition p1 --size 64").code == 0
    assert "pod64" in run("vipu list clusters").out


def test_a_refused_partition_makes_no_pod(run: Run) -> None:
    assert run("vipu create partition p1 --size 3").code == 2
    assert "pod64" not in run("vipu list clusters").out


def test_versions_are_written_as_scripts_read_them(
    run: Run, environ: dict[str, str]
) -> None:
    path = environ["POPRUN_VIPU_INVENTORY"]

    assert run("vipu --version").out == f"vipu {__version__}\n"
    assert run("vipu-admin --version").out == f"vipu-admin {__version__}\n"
    assert run("vipu --server-version").out == (
        f"version: {__version__}\nhost: embedded ({path})\n"
    )
    assert not Path(path).exists()


@pytest.mark.parametrize("line", ["vipu", "vipu list", "vipu-admin create"])
def test_a_command_without_a_noun_explains_itself(run: Run, line: str) -> None:
    result = run(line)

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"Usage: {line} ")


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("line", ["vipu", "vipu create partition", "vipu-admin list"])
def test_help_needs_no_inventory(
    run: Run, environ: dict[str, str], line: str, option: str
) -> None:
    result = run(f"{line} {option}")

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: {line} ")
    assert "--api-host" in result.out
    assert not Path(environ["POPRUN_VIPU_INVENTORY"]).exists()


@pytest.mark.parametrize(
    "line",
    [
        "vipu-admin create cluster c1",
        "vipu-admin create allocation a1 --agents ,",
        "vipu update partition p1",
        "vipu create partition p1 --size 3",
    ],
)
def test_a_usage_error_comes_before_an_inventory_is_made(
    run: Run, environ: dict[str, str], line: str
) -> None:
    assert run(line).code == 2
    assert not Path(environ["POPRUN_VIPU_INVENTORY"]).exists()


@pytest.mark.parametrize(
    ("line", "code", "sentence"),
    [
        ("vipu lst partitions", 2, "There is no command 'lst'"),
        ("vipu list partition --siez 4", 2, "No such option"),
        ("vipu get partition", 2, "Missing argument 'NAME'"),
        ("vipu get partition p1 --gcd 0", 2, "--gcd requires --ipuof-configs"),
        ("vipu create partition p1", 2, "Missing option '--size'"),
        ("vipu create partition p1 --size x", 2, "'x' is not a valid integer"),
        ("vipu create partition p1 --size 3", 2, "a power of two"),
        ("vipu create partition p1 --size 0", 2, "a power of two"),
        (
            "vipu create partition ../p --size 4",
            2,
            "is not a valid name for a partition",
        ),
        ("vipu create partition p --size 4 --routing x", 2, "There are default, dnc"),
        (
            "vipu create partition p --size 4 --reconfigurable --sync-type "
            "pod-native-default",
            2,
            "a reconfigurable partition has c2-compatible",
        ),
        (
            "vipu create partition p --size 4 --allocation A",
            1,
            "Existing allocations: pod64.",
        ),
        ("vipu create partition p --size 4 --cluster C", 1, "no cluster 'C'"),
        ("vipu get partition nope", 1, "There is no partition 'nope'"),
        ("vipu remove partition nope", 1, "There is no partition 'nope'"),
        ("vipu reset partition nope", 1, "There is no partition 'nope'"),
        ("vipu update partition p1", 2, "There is nothing to change"),
        ("vipu create partition taken --size 4", 1, "Choose another name"),
        ("vipu get partition taken --ipu-configs --gcd 9", 2, "has no GCD 9"),
        ("vipu-admin create cluster c1", 2, "--agents, --num-agents and --preset"),
        ("vipu-admin create cluster c1 --preset pod5", 2, "'pod5' is not one of"),
        ("vipu-admin create agent a --host h --port 0", 2, "0 is not in the range"),
        ("vipu-admin remove agent ag0", 1, "belongs to cluster pod64"),
        ("vipu-admin create allocation a --agents nope", 1, "no agent 'nope'"),
        ("vipu --config /nope.hcl list partitions", 2, "/nope.hcl cannot be read"),
        ("vipu --version list partitions", 2, "cannot be combined"),
        ("vipu --api-host= list partitions", 2, "It is empty"),
        (
            "vipu list partitions --api-timeout nan",
            2,
            "'nan' is neither a number of seconds nor a duration",
        ),
        ("vipu list partitions --api-timeout 0", 2, "0.0 is not in the range"),
    ],
)
def test_a_refusal_is_one_sentence_and_nothing_on_stdout(
    make: Make, run: Run, line: str, code: int, sentence: str
) -> None:
    make("vipu create partition taken --size 4")

    result = run(line)

    assert (result.code, result.out) == (code, "")
    assert re.fullmatch(rf"{line.split()[0]}: error: .+\n", result.err)
    assert sentence in result.err


def test_a_refusal_names_no_options_of_poprun(make: Make, run: Run) -> None:
    make("vipu create partition p1 --size 64")

    error = run("vipu create partition p2 --size 64").err

    assert "all 64 IPUs of cluster pod64 are in use" in error
    assert error.endswith("or name another cluster or allocation.\n")
    assert "--vipu" not in error


def test_an_inventory_that_cannot_be_opened_is_an_error(
    run: Run, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    environ["POPRUN_VIPU_INVENTORY"] = str(tmp_path / "file" / "inventory.db")

    result = run("vipu list partitions")

    assert (result.code, result.out) == (1, "")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "vipu list frogs",
            "vipu: error: 'vipu list' takes no 'frogs', but partitions, allocations, "
            "clusters, agents or ipu-attrs.\n",
        ),
        (
            "vipu reset cluster",
            "vipu: error: 'vipu reset' takes no 'cluster', but partition.\n",
        ),
        (
            "vipu create agent ag1 --host h",
            "vipu: error: Only administrators can do that: vipu-admin create agent "
            "--help\n",
        ),
        (
            "vipu list user",
            "vipu: error: Only administrators can do that: vipu-admin list users "
            "--help\n",
        ),
        (
            "vipu discover agents",
            "vipu: error: Only administrators can do that: vipu-admin discover "
            "--help\n",
        ),
        (
            "vipu-admin frob agents",
            "vipu-admin: error: There is no command 'frob'. There are list, get, "
            "create, update, reset, remove, discover and show.\n",
        ),
    ],
)
def test_an_unknown_word_is_answered_with_those_that_there_are(
    run: Run, line: str, sentence: str
) -> None:
    assert run(line) == (2, "", sentence)
