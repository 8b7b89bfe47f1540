"""The command, from its arguments to its files."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from conftest import Poprun

from popdist.bench import sizes
from popdist.bench.__main__ import read

TUNE = ["-m", "popdist.bench", "--seconds", "0.01"]
COMMAND = [*TUNE, "--dtypes", "float32"]


def test_by_default_everything_is_measured_and_no_file_written() -> None:
    arguments = read([])

    assert arguments.sizes == sizes.DEFAULT
    assert arguments.dtypes == ("float32", "float16")
    assert arguments.peers == ("mpi", "gloo")
    assert (arguments.op, arguments.read_result) == (("all_reduce",), True)
    assert (arguments.json, arguments.plot, arguments.tune) == (None, None, None)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--sizes", "4KB"], "'4KB' is not a size."),
        (["--dtypes", "float32,complex64"], "'complex64' is not one of float32, "),
        (["--peers", "nccl"], "'nccl' is not one of mpi, gloo, deepspeed, none."),
        (["--seconds", "0"], "'0' is not a time. Give seconds above 0 and below 3600"),
        (
            ["--load", "-1"],
            "'-1' is not a number of processes. Give one from 0 to 1024.",
        ),
        (["--seconds", "nan"], "'nan' is not a time."),
        (["--json", "/no/such/file"], "'/no/such/file' cannot be written: it is a"),
        (["--json", "/"], "'/' cannot be written: it is a folder"),
        (
            ["--plot", "found.txt"],
            "'found.txt' is not the name of a picture. Name a file that",
        ),
        (["--algorithm", "tree"], "invalid choice: 'tree'"),
        (
            ["--op", "scan"],
            "'scan' is not one of all_reduce, reduce_scatter, all_gather.",
        ),
        (
            ["--op", "all_reduce,all_gather", "--in-arena"],
            "--in-arena is for all_reduce only, but --op also has all_gather. Measure "
            "them apart.",
        ),
        (
            ["--op", "reduce_scatter", "--algorithm", "ring"],
            "--algorithm is for all_reduce only, but --op also has reduce_scatter.",
        ),
        (
            ["--torch", "--algorithm", "ring"],
            "--algorithm is for calls of numpy, but --torch measures those of torch",
        ),
        (
            ["--tune", "t.json", "--sizes", "4", "--in-arena", "--seconds", "1"],
            "--tune measures the engine's table with fixed sizes and dtypes and "
            "without peers, so it can be combined with --seconds only. Leave out "
            "--in-arena, --sizes, or --tune.",
        ),
    ],
)
def test_a_wrong_argument_is_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        read(words)

    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--op", "all_gather"],
        ["--no-read-result"],
        ["--sizes", "4"],
        ["--dtypes", "float32"],
        ["--peers", "none"],
        ["--algorithm", "ring"],
        ["--in-arena"],
        ["--load", "1"],
        ["--json", "found.json"],
        ["--plot", "found.png"],
    ],
    ids=lambda words: words[0],
)
def test_tune_refuses_options_of_the_comparison(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        read(["--tune", "tuning.json", *words])

    assert end.value.code == 2
    assert f"Leave out {words[0]}, or --tune." in capsys.readouterr().err


def test_one_process_alone_measures_the_engine_and_the_floor(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    picture = tmp_path / "found.png"
    words = [*COMMAND, "--sizes", "2,1K,64K", "--peers", "none", "--json", str(file)]
    words += ["--plot", str(picture), "--load", "1"]
    words += ["--op", "all_reduce,reduce_scatter,all_gather"]
    # It makes its cache of fonts, which it would tell of if that took long.
    import_module("matplotlib.font_manager")

    ran = subprocess.run([sys.executable, *words], capture_output=True, text=True)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Compare\nratios, not times" in ran.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = json.loads(file.read_text())
    assert "Busy processes beside: 1." in ran.stdout
    assert {r["busy_processes"] for r in found} == {1}
    # Less than one element is one.
    assert [result["bytes"] for result in found] == [4, 1024, 65536] * 3
    assert {(r["members"], r["mode"]) for r in found} == {(1, "unknown")}
    assert [r["operation"] for r in found[::3]] == [
        *("all_reduce", "reduce_scatter", "all_gather"),
    ]
    assert all(r["rounds"] >= 5 and r["engine_us"] > 0 for r in found)


@pytest.mark.mpi
def test_instances_measure_the_engine_with_mpi_on_the_same_ranks(
    poprun: Poprun, tmp_path: Path
) -> None:
    words = [*COMMAND, "--sizes", "4,256K", "--peers", "mpi", "--json", "found.json"]
    words += ["--op", "all_reduce,reduce_scatter,all_gather"]

    ran = poprun(
        *("--num-instances", "3", "--num-replicas", "6", "--offline-mode=1"),
        *(sys.executable, *words),
    )

    assert (ran.code, ran.stderr) == (0, "")
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(r["bytes"], r["members"], r["errors"]) for r in found] == [
        (4, 3, {}),
        (262_144, 3, {}),
        *[(12, 3, {}), (262_152, 3, {})] * 2,
    ]
    algorithms = [r["algorithm"] for r in found]
    assert algorithms == ["oneshot", "direct", *["blocks"] * 4]
    assert all(list(r["peers"]) == ["openmpi"] for r in found)
    assert all(set(r["ratios"]) == {"openmpi", "floor"} for r in found)
    assert all(len(r["placement"]) == 3 for r in found)
    assert {r["mode"] for r in found} <= {"fast", "slow"}


@pytest.mark.mpi
def test_instances_measure_calls_of_torch_beside_gloo(
    poprun: Poprun, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    words = [*TUNE, "--torch", "--sizes", "4,64K", "--dtypes", "bfloat16,float32"]
    words += ["--peers", "gloo", "--op", "all_reduce,all_gather,reduce_scatter"]

    ran = poprun(
        *("--num-instances", "2", "--num-replicas", "2", "--offline-mode=1"),
        *("--mpirun", "local", sys.executable, *words, "--json", "found.json"),
    )

    assert ran.code == 0, ran.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert [r["dtype"] for r in found] == ["bfloat16"] * 2 + ["float32"] * 2 + [
        *(["bfloat16"] * 2 + ["float32"] * 2) * 2
    ]
    assert all(list(r["peers"]) == ["gloo"] for r in found), found
    assert {r["algorithm"] for r in found} >= {"oneshot", "blocks"}


@pytest.mark.mpi
def test_tuning_writes_the_engines_table(poprun: Poprun, tmp_path: Path) -> None:
    ran = poprun(
        *("--num-instances", "2", "--num-replicas", "2", "--offline-mode=1"),
        *(sys.executable, *TUNE, "--tune", "tuning.json"),
    )

    assert (ran.code, ran.stderr) == (0, "")
    (entry,) = json.loads((tmp_path / "tuning.json").read_text())["entries"]
    assert list(entry) == ["members", "oneshot_bytes", "block_bytes", "spin_us"]
    assert entry["members"] in ("fit", "crowded")
