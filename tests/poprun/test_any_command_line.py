"""Whatever a user writes is understood or refused in a sentence: never a traceback."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poprun import cli
from poprun.options.table import BY_NAME, OPTIONS
from poprun.options.types import Option, variable

ODD = [
    *("", "0", "1", "2", "-1", "9" * 30, "0.5", "nan", "yes", "no", "all", "none"),
    *(
        "a,b",
        "localhost:1",
        "u@localhost",
        "[::1]",
        "node[0-3]",
        "node[0-",
        "10.0.0.0/8",
    ),
    *("/nothing/there", "file", "directory", "job.yaml", "-", "--", "=", " ", "\n"),
    *("\0", "\udcff", "\u2212n", "\u00b2", "\u0661", "%s", "{}", "x" * 5000, "local"),
    *("1:-x A=1", "0:--wdir /", "99:-x A", "text", "ST_POD_NATIVE_DEFAULT", "default"),
]
FOR_MPIRUN = [
    *(
        "--tag-output",
        "--wdir",
        "-wd",
        "/",
        "--output",
        "tag,xml",
        "dir=x:nocopy",
        "-x",
    ),
    *("A=1", "B*", "PATH=", "--mca", "a", "--bind-to", "core", "--display", "-np", ":"),
    *("'", '"', "\\", "--report-pid", "-", "--set-env", "--pernode", "-N", "1", "-q"),
    *("--unknown", "--unknown=3", "--=", "=", "\udcff", "\0", "--wdir=/nothing/there"),
]

# A NUL byte can stand in a file only: no argument or variable can have it.
odd = st.sampled_from([word for word in ODD if "\0" not in word]) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5
)
# What would write files, or show what another test looks at.
asked = [o for o in OPTIONS.values() if o.name not in ("export-config", "dry-run")]


def texts(option: Option) -> st.SearchStrategy[str]:
    if option.name.endswith("mpi-local-args") or option.name == "mpi-global-args":
        words = st.lists(st.sampled_from([w for w in FOR_MPIRUN if w != "\0"]))
        before = "1:" if option.name.startswith("instance") else ""
        return words.map(lambda found: before + " ".join(found)) | odd
    if option.choices:
        return st.sampled_from(option.choices) | odd
    return odd


@st.composite
def option_words(draw: st.DrawFn) -> list[str]:
    option = draw(st.sampled_from(asked))
    name, text = draw(st.sampled_from(option.names)), draw(texts(option))
    return draw(st.sampled_from([[f"--{name}={text}"], [f"--{name}", text]]))


lines = st.lists(option_words() | odd.map(lambda word: [word]), max_size=5).map(
    lambda parts: [word for part in parts for word in part]
)
environments = st.dictionaries(
    st.sampled_from(
        [variable(name) for name in BY_NAME if name not in ("export-config", "dry-run")]
        + ["POPRUN_NUM_REPLICA", "SLURMD_NODENAME", "TMPDIR", "POPLAR_TARGET_OPTIONS"]
    ),
    odd,
    max_size=2,
)
files = st.lists(
    st.sampled_from(asked).flatmap(
        lambda option: st.sampled_from(
            [*ODD, '"\\0"', "[1, 2]", "{a: b}", "&a *a", "!!python/x y", "~", "|"]
        ).map(lambda text: f"{option.name}: {text}")
    ),
    max_size=3,
).map("\n".join)


@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(lines, environments, files)
def test_any_line_any_variables_and_any_file_are_understood_or_refused(
    tmp_path: Path,
    words: list[str],
    environ: dict[str, str],
    file: str,
) -> None:
    (tmp_path / "directory").mkdir(exist_ok=True)
    (tmp_path / "file").touch()
    (tmp_path / "job.yaml").write_bytes(file.encode(errors="surrogateescape"))

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for name, value in environ.items():
            patch.setenv(name, value)
        code = cli.main(["--dry-run", "--mpirun", "local", *words, "true"])

    assert code in (0, 2, 125, 126, 127)


@pytest.mark.parametrize("name", ["stdin", "hostfile", "mpirun", "vipu-partition"])
def test_a_nul_byte_in_a_file_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f'{name}: "a\\0b"\n')

    assert cli.main(["--dry-run", "--import-config", str(file), "true"], {}) == 2
    assert capfd.readouterr().err == (
        f"poprun: error: {file}:1: {name} is 'a\\x00b', but must not contain a NUL "
        f"byte.\n"
    )
