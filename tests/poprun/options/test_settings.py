from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poprun.errors import OptionError
from poprun.options import config_file, types
from poprun.options.grammar import parse
from poprun.options.settings import Settings, resolve_settings, show_object, show_table
from poprun.options.table import EXCLUSIVE, OPTIONS
from poprun.options.types import Option


def resolve(*words: str, **environ: str) -> Settings:
    return resolve_settings(parse([*words, "program"]).options, environ)


def refused(*words: str, **environ: str) -> tuple[str, list[str]]:
    with pytest.raises(OptionError) as refusal:
        resolve(*words, **environ)
    return str(refusal.value), getattr(refusal.value, "__notes__", [])


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(text: str | bytes) -> str:
    Path("job.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    return "--import-config=job.yaml"


def values(settings: Settings) -> dict[str, object]:
    return {name: setting.value for name, setting in settings.entries.items()}


def test_every_option_has_its_default_when_nothing_is_given() -> None:
    settings = resolve()

    assert values(settings) == {o.name: o.default for o in OPTIONS.values()}
    assert {settings.origin(name) for name in OPTIONS} == {"default"}


def test_the_command_line_beats_the_environment_beats_the_file() -> None:
    file = job("num-instances: 2\nnum-replicas: 2\nipus-per-replica: 2\n")

    settings = resolve(
        file,
        "--num-instances=4",
        POPRUN_NUM_INSTANCES="3",
        POPRUN_NUM_REPLICAS="3",
    )

    names = ["num-instances", "num-replicas", "ipus-per-replica", "num-ilds"]
    assert [(settings[name], settings.origin(name)) for name in names] == [
        (4, "command line"),
        (3, "POPRUN_NUM_REPLICAS"),
        (2, "job.yaml:3"),
        (1, "default"),
    ]


def test_a_default_value_that_the_user_gives_counts_as_given() -> None:
    settings = resolve("--num-replicas=1")

    assert settings.is_given("num-replicas")
    assert not settings.is_given("num-instances")


def test_of_two_on_the_command_line_the_last_counts() -> None:
    assert resolve("--num-replicas=2", "--num-replicas=4")["num-replicas"] == 4


def test_arguments_for_mpirun_add_up_in_order() -> None:
    settings = resolve(
        "--mpi-global-args=--tag-output",
        "--instance-mpi-local-args=1:-x A=B",
        "--mpi-global-args=--mca a b",
        "--instance-mpi-local-args=0:-x A=C",
    )

    assert settings["mpi-global-args"] == ("--tag-output", "--mca a b")
    assert settings["instance-mpi-local-args"] == ((1, "-x A=B"), (0, "-x A=C"))


def test_a_repeatable_option_is_replaced_by_the_layer_above_as_a_whole() -> None:
    settings = resolve("--mpi-local-args=-x A", POPRUN_MPI_LOCAL_ARGS="-x B")

    assert settings["mpi-local-args"] == ("-x A",)


@pytest.mark.parametrize(
    ("words", "verbosity"),
    [
        ([], 0),
        (["-v"], 1),
        (["--verbose"], 1),
        (["-v", "-v"], 2),
        (["-vv"], 2),
        (["--vv"], 2),
        (["-vvv"], 2),
        (["--verbose=no"], 0),
        (["--vv=no", "-v"], 1),
    ],
)
def test_verbosity_is_counted(words: list[str], verbosity: int) -> None:
    assert resolve(*words).verbosity == verbosity


def test_verbosity_of_the_command_line_beats_that_of_the_environment() -> None:
    assert resolve("-v", POPRUN_VV="1").verbosity == 1
    assert resolve("--verbose=0", POPRUN_VERBOSE="2").verbosity == 0
    assert resolve(POPRUN_VERBOSE="2").verbosity == 2


def test_quiet_and_a_log_in_one_place_contradict_each_other() -> None:
    assert refused("-q", "-v") == (
        "--quiet and --verbose are both given (command line), but they exclude each "
        "other.",
        ["Leave one of them out."],
    )
    assert refused(POPRUN_QUIET="1", POPRUN_DEBUG="yes")[0] == (
        "--quiet and --debug are both given (POPRUN_QUIET, POPRUN_DEBUG), but they "
        "exclude each other."
    )
    assert refused(job("quiet: yes\nvv: yes\n"))[0] == (
        "--quiet and --vv are both given (job.yaml:1, job.yaml:2), but they exclude "
        "each other."
    )
    assert resolve("-q", "--verbose=0", "--debug=no")["quiet"]


@pytest.mark.parametrize(
    ("words", "variables", "quiet", "verbosity"),
    [
        (["-q"], {"POPRUN_VERBOSE": "2"}, True, 0),
        (["-q"], {"POPRUN_DEBUG": "yes"}, True, 0),
        (["-v"], {"POPRUN_QUIET": "1"}, False, 1),
        (["--quiet=no"], {"POPRUN_VV": "1"}, False, 2),
        (["--debug=no"], {"POPRUN_QUIET": "1"}, True, 0),
    ],
)
def test_of_quiet_and_a_log_the_nearer_to_the_user_counts(
    words: list[str], variables: dict[str, str], quiet: bool, verbosity: int
) -> None:
    settings = resolve(*words, **variables)

    assert (settings["quiet"], settings.verbosity) == (quiet, verbosity)


def test_quiet_leaves_out_the_status_line_unless_it_is_asked_for() -> None:
    assert resolve().shows_progress
    assert not resolve("-q").shows_progress
    assert resolve("-q", "--progress=yes").shows_progress
    assert not resolve("--progress=no").shows_progress


def test_an_empty_variable_is_none() -> None:
    assert not resolve(POPRUN_NUM_REPLICAS="").is_given("num-replicas")


def test_variables_of_other_names_change_no_option() -> None:
    assert values(resolve(POPRUN_OPTIONS="-vv", POPRUN_VERSION="3")) == values(
        resolve()
    )


def test_an_error_in_a_variable_names_it() -> None:
    assert refused(POPRUN_NUM_REPLICAS="many") == (
        "POPRUN_NUM_REPLICAS is 'many', but must be a whole number in plain digits, "
        "such as 4, or auto.",
        [],
    )


def test_an_alias_has_a_variable_too() -> None:
    settings = resolve(POPRUN_HOST_FILE="hosts")

    assert (settings["hostfile"], settings.origin("hostfile")) == (
        "hosts",
        "POPRUN_HOST_FILE",
    )


def test_hosts_and_a_file_of_hosts_exclude_each_other() -> None:
    assert refused("--host=a", "--hostfile=f") == (
        "--host and --hostfile are both given (command line), "
        "but they exclude each other.",
        ["Leave one of them out."],
    )
    assert refused(POPRUN_HOSTFILE="f", POPRUN_HOST="a")[0] == (
        "--host and --hostfile are both given (POPRUN_HOST, POPRUN_HOSTFILE), "
        "but they exclude each other."
    )
    assert refused(job("hostfile: f\nnum-ilds: 1\nhost: a\n"))[0] == (
        "--hostfile and --host are both given (job.yaml:1, job.yaml:3), "
        "but they exclude each other."
    )


@pytest.mark.parametrize(
    ("name", "text", "rival"),
    [
        ("host", "a", "hostfile"),
        ("hostfile", "f", "host"),
        ("numa-aware", "no", "process-placement"),
        ("vipu-allocation", "A", "vipu-cluster"),
    ],
)
def test_the_command_line_silences_a_rival_in_the_environment(
    name: str, text: str, rival: str
) -> None:
    rival_text = {"process-placement": "spreadcores"}.get(rival, "other")
    variable = "POPRUN_" + rival.upper().replace("-", "_")

    settings = resolve(f"--{name}={text}", **{variable: rival_text})

    assert settings.is_given(name)
    assert not settings.is_given(rival)
    assert resolve(**{variable: rival_text})[rival] == rival_text


def test_the_old_and_the_new_name_of_placement_go_together() -> None:
    settings = resolve("--numa-aware=yes", "--process-placement=disabled")

    assert (settings["numa-aware"], settings["process-placement"]) == (True, "disabled")


def test_the_environment_may_name_the_file() -> None:
    job("num-replicas: 2\n")

    settings = resolve(POPRUN_IMPORT_CONFIG="job.yaml")

    assert settings["num-replicas"] == 2
    assert settings.origin("import-config") == "POPRUN_IMPORT_CONFIG"


def test_a_file_is_read_by_the_rules_of_the_command_line() -> None:
    settings = resolve(
        job(
            "\ufeff# A job.\n"
            "num-replicas: 8\n"
            'num-instances: "4"\n'
            "offline-mode: on\n"
            "print-topology: 1\n"
            "keep-going: yes\n"
            "verbose: true\n"
            "grace: 0.5\n"
            "host-file: 0123\n"
            "vipu-partition: yes\n"
            "mpi-global-args: --tag-output\n"
            "instance-mpi-local-args: ['0:-x A=B', '1:-x A=C']\n"
        )
    )

    assert {n: v for n, v in values(settings).items() if settings.is_given(n)} == {
        "import-config": "job.yaml",
        "num-replicas": 8,
        "num-instances": 4,
        "offline-mode": True,
        "print-topology": True,
        "keep-going": True,
        "verbose": 1,
        "grace": 0.5,
        "hostfile": "0123",
        "vipu-partition": "yes",
        "mpi-global-args": ("--tag-output",),
        "instance-mpi-local-args": ((0, "-x A=B"), (1, "-x A=C")),
    }


@pytest.mark.parametrize("text", ["", "# Nothing yet.\n", "{}\n"])
def test_an_empty_file_gives_nothing(text: str) -> None:
    file = job(text)

    assert not any(
        resolve(file).is_given(name) for name in OPTIONS if name != "import-config"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param(
            "num-ilds: 1\nnum-replicas: four\n",
            "job.yaml:2: num-replicas is 'four', but must be a whole number in plain "
            "digits, such as 4, or auto.",
            id="wrong-type",
        ),
        pytest.param(
            "num-replicas: 1_0\n",
            "job.yaml:1: num-replicas is '1_0', but must be a whole number in plain "
            "digits, such as 4, or auto.",
            id="digits-that-only-YAML-knows",
        ),
        pytest.param(
            "num-ilds: 1\nnum-replica: 4\n",
            "job.yaml:2: poprun has no option named 'num-replica'.",
            id="unknown",
        ),
        pytest.param(
            "num-replicas: 4\n\nnum-replicas: 4\n",
            "job.yaml:3: num-replicas is given twice; the first is in line 1.",
            id="duplicate",
        ),
        pytest.param(
            "hostfile: a\nhost-file: a\n",
            "job.yaml:2: hostfile is given twice; the first is in line 1.",
            id="duplicate-by-alias",
        ),
        pytest.param(
            "num-replicas:\n  - 4\n",
            "job.yaml:2: num-replicas is a list, but must be a single value.",
            id="list",
        ),
        pytest.param(
            "host: {a: 2}\n",
            "job.yaml:1: host is a mapping, but must be a single value.",
            id="mapping",
        ),
        pytest.param(
            "env: {A: 1}\n",
            "job.yaml:1: env is a mapping, but must be a value or a list of values.",
            id="mapping-for-a-list",
        ),
        pytest.param(
            "mpi-local-args:\n- -x A\n- [-x B]\n",
            "job.yaml:3: mpi-local-args is a list, but must be a single value.",
            id="list-in-list",
        ),
        pytest.param(
            "mpi-local-args:\n- -x A\n- -x\n",
            "job.yaml:3: mpi-local-args is '-x', which ends in -x with no "
            "variable after it.",
            id="bare-x",
        ),
        pytest.param(
            "host:\nnum-replicas: 1\n", "job.yaml:1: host has no value.", id="null"
        ),
        pytest.param(
            "host: !!python/name:os.system ''\n",
            "job.yaml:1: host has the tag "
            "tag:yaml.org,2002:python/name:os.system, but must have none.",
            id="tag",
        ),
        pytest.param(
            "# Hosts\n- a\n",
            "job.yaml:2: the file is a list, but must map long names of options to "
            "values, such as num-replicas: 8.",
            id="list-at-the-top",
        ),
        pytest.param(
            "num-replicas\n",
            "job.yaml:1: the file is a single value, but must map long names of "
            "options to values, such as num-replicas: 8.",
            id="text-at-the-top",
        ),
        pytest.param(
            "[a, b]: 1\n",
            "job.yaml:1: the name of an option is missing before the colon.",
            id="list-as-key",
        ),
        pytest.param(
            "num-ilds: 1\nhost: [a\n",
            "job.yaml:3: this is not valid YAML: expected ',' or ']', but got '<stream "
            "end>'.",
            id="syntax",
        ),
        pytest.param(
            "num-ilds: 1\n---\nnum-ilds: 1\n",
            "job.yaml:2: this is not valid YAML: but found another document.",
            id="two-documents",
        ),
        pytest.param(
            "num-ilds: 1\nhost: \x01\n",
            "job.yaml:2: this is not valid YAML: special characters are not allowed.",
            id="control-character",
        ),
        pytest.param(
            b"num-ilds: 1\nhost: \xff\n",
            "job.yaml:2: this is not valid UTF-8.",
            id="no-UTF-8",
        ),
        pytest.param(
            "[" * 5000, "job.yaml:1: this is nested too deeply.", id="endless-nesting"
        ),
        pytest.param(
            "#" * 1_000_001,
            "The configuration file job.yaml has more than 1000000 bytes.",
            id="too-long",
        ),
    ],
)
def test_a_mistake_in_a_file_is_refused_with_its_line(
    text: str | bytes, sentence: str
) -> None:
    assert refused(job(text))[0] == sentence


@pytest.mark.parametrize("name", ["n", "-n"])
def test_a_short_name_in_a_file_is_answered_with_the_long_one(name: str) -> None:
    assert refused(job(f"{name}: 4\n")) == (
        f"job.yaml:1: poprun has no option named '{name}'.",
        ["Write its long name, num-processes."],
    )


@pytest.mark.parametrize(
    "name",
    [
        "help",
        "version",
        "version-format",
        "dry-run",
        "show-config",
        "import-config",
        "export-config",
        "overwrite-config",
    ],
)
def test_what_is_for_one_call_only_cannot_stand_in_a_file(name: str) -> None:
    assert refused(job(f"{name}: yes\n")) == (
        f"job.yaml:1: {name} is not allowed in a configuration file.",
        ["Give it on the command line."],
    )


def test_an_unknown_name_in_a_file_comes_with_the_nearest() -> None:
    assert refused(job("--num_replica: 4\n"))[1] == ["Did you mean num-replicas?"]


def test_a_file_that_is_not_there_or_a_directory_is_refused() -> None:
    assert refused("--import-config=no.yaml")[0] == (
        "The configuration file no.yaml cannot be read: No such file or directory."
    )
    assert refused("--import-config=.")[0] == (
        "The configuration file . cannot be read: Is a directory."
    )


EXPORTED = """\
num-replicas: 8
host: node[0-2,4]
offline-mode: true
vipu-partition: '007'
mpi-global-args:
- --tag-output
- '--mca a: b'
instance-mpi-local-args:
- 1:-x A=B
verbose: 1
timeout: '0.00001'
"""


def test_what_was_given_is_exported_in_the_order_of_the_help() -> None:
    settings = resolve(
        "-v",
        "--dry-run",
        "--export-config=out.yaml",
        "--timeout=0.00001",
        "--instance-mpi-local-args=1:-x A=B",
        "--mpi-global-args=--tag-output",
        "--mpi-global-args=--mca a: b",
        "--vipu-partition=007",
        "--offline-mode=1",
        "--host=node[0-2,4]",
        POPRUN_NUM_REPLICAS="08",
    )

    config_file.export(settings, "out.yaml", overwrite=False)

    assert Path("out.yaml").read_text() == EXPORTED


def test_an_existing_file_is_replaced_only_on_request() -> None:
    Path("out.yaml").write_text("precious")

    with pytest.raises(OptionError) as refusal:
        config_file.export(resolve(), "out.yaml", overwrite=False)

    assert str(refusal.value) == (
        "The file out.yaml of --export-config exists already."
    )
    assert refusal.value.__notes__ == ["To replace it, add --overwrite-config=yes."]
    assert Path("out.yaml").read_text() == "precious"

    config_file.export(resolve(), "out.yaml", overwrite=True)

    assert Path("out.yaml").read_text() == "{}\n"


def test_a_file_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(OptionError) as refusal:
        config_file.export(resolve(), "no/out.yaml", overwrite=False)

    assert str(refusal.value) == (
        "The file no/out.yaml of --export-config cannot be written: "
        "No such file or directory."
    )


def a_text_for(option: Option) -> st.SearchStrategy[str]:
    # Anything that can stand on a command line: no NUL, undecodable bytes as
    # surrogates.
    anything = st.text(
        st.characters(codec="utf-8", exclude_characters="\0")
        | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF, categories=["Cs"]),
        min_size=1,
    )
    match option.read:
        case types.read_whole | types.read_count:
            return st.integers(option.minimum, 65535).map(str)
        case types.read_seconds:
            return st.from_regex(
                r"[0-9]{1,9}(\.[0-9]{0,20})?|[0-9]{1,3}h", fullmatch=True
            )
        case types.read_whole_seconds:
            return st.sampled_from(["1", "600", "1.5h", "2m30s"])
        case types.read_wait:
            return st.sampled_from(["yes", "no", "1", "0.5", "600", "10m"])
        case types.read_boolean:
            return st.sampled_from(["yes", "no", "On", "0"])
        case types.read_choice:
            return st.sampled_from(option.choices)
        case types.read_instances:
            return st.sampled_from(["0,4-7", "first", "ALL", "2,failed"])
        case types.read_tag_format:
            return st.sampled_from(["short", "NONE", "{time:%H:%M} {host}: "])
        case types.read_environment:
            return anything.map("1:NAME={}".format)
        case types.read_subnet:
            return st.sampled_from(["10.5.0.0/16", "fd00::1/8"])
        case types.read_instance_arguments:
            return anything.map("3:{}".format).filter(lambda text: "-x" not in text)
        case _:
            return anything.filter(lambda text: "-x" not in text)


EXPORTABLE = [o for o in OPTIONS.values() if o.in_file and o.name not in EXCLUSIVE]
GIVEN = st.lists(
    st.sampled_from(
        # --quiet contradicts the options that log.
        [o for o in EXPORTABLE if o.name != "quiet"]
    ).flatmap(lambda option: st.tuples(st.just(option), a_text_for(option))),
    max_size=8,
)


@given(GIVEN)
def test_what_is_exported_is_imported_with_the_same_values(
    given: list[tuple[Option, str]],
) -> None:
    settings = resolve_settings(given, {})

    config_file.export(settings, "out.yaml", overwrite=True)
    imported = resolve_settings([(OPTIONS["import-config"], "out.yaml")], {})

    assert values(imported) | {"import-config": None} == values(settings)


def test_the_table_shows_every_option_its_value_and_its_origin() -> None:
    settings = resolve(
        job("num-ilds: 2\n"),
        "-vv",
        "--mpi-local-args=-x A=\u00e4",
        "--mpi-local-args=-x B",
        "--host=a, b",
        "--offline-mode=on",
        POPRUN_GRACE="2.50",
    )

    lines = [line.split(maxsplit=1) for line in show_table(settings).splitlines()]
    rows = {name: " ".join(rest.split()) for name, rest in lines}

    assert list(rows) == [f"--{name}" for name in OPTIONS]
    assert rows["--num-ilds"] == "2 job.yaml:1"
    assert rows["--verbose"] == "2 command line"
    assert rows["--mpi-local-args"] == "'-x A=\u00e4', '-x B' command line"
    assert rows["--host"] == "'a, b' command line"
    assert rows["--offline-mode"] == "yes command line"
    assert rows["--grace"] == "2.50 POPRUN_GRACE"
    assert rows["--timeout"] == "no limit default"
    assert rows["--vipu-server-port"] == "8090 default"
    assert rows["--mpi-global-args"] == "none default"


@pytest.mark.parametrize(
    ("words", "shown", "value"),
    [
        ((), "automatic:", None),
        (("--vipu-partition=p",), "automatic:", None),
        (("--vipu-partition=p", "--offline-mode=yes"), "yes", True),
        (("--offline-mode=no",), "no", False),
        (("-n", "4"), "yes", True),
        (("-n", "4", "--offline-mode=no"), "no", False),
        (("-n", "4", "--num-replicas=4"), "automatic:", None),
    ],
)
def test_the_table_shows_whether_the_job_runs_offline(
    words: tuple[str, ...], shown: str, value: bool | None
) -> None:
    settings = resolve(*words)
    [row] = [
        line.split()
        for line in show_table(settings).splitlines()
        if line.startswith("--offline-mode ")
    ]

    assert row[1] == shown
    assert show_object(settings)["offline-mode"]["value"] is value


@pytest.mark.parametrize(
    ("words", "file", "environ", "giver"),
    [
        (["-n", "4"], "", {}, "-n"),
        (["-np", "4"], "", {}, "-n"),
        (["--nproc=4"], "", {}, "-n"),
        ([], "", {"POPRUN_NUM_PROCESSES": "4"}, "POPRUN_NUM_PROCESSES"),
        ([], "num-processes: 4\n", {}, "job.yaml:1"),
        (["-n", "4"], "num-instances: 2\n", {}, "-n"),
        (["-n", "4", "--executable-cache-path=c"], "", {}, "-n"),
        (["-n", "4", "--num-replicas=8"], "", {}, ""),
        (["-n", "4", "--ipus-per-replica=1"], "", {}, ""),
        (["-n", "4", "--num-ilds=1"], "", {}, ""),
        (["-n", "4", "--wait-for-ipus"], "", {}, ""),
        (["-n", "4"], "vipu-partition: p\n", {}, ""),
        (["-n", "4"], "", {"POPRUN_VIPU_SERVER_HOST": "h"}, ""),
        (["-n", "4", "--offline-mode=no"], "", {}, ""),
        (["-n", "4"], "offline-mode: no\n", {}, ""),
        (["--num-instances=4", "--num-replicas=4"], "", {}, ""),
        (["--num-instances=1"], "num-processes: 4\n", {}, ""),
        ([], "", {}, ""),
    ],
)
def test_processes_have_no_ipus_unless_an_option_is_about_replicas_or_ipus(
    words: list[str], file: str, environ: dict[str, str], giver: str
) -> None:
    settings = resolve(job(file), *words, **environ)

    assert settings.offline_because_of == giver
    assert settings.offline == bool(giver)
    if giver:
        assert settings.origin("offline-mode") == f"automatic, by {giver}"
        assert not settings.needs_ipus


def test_an_option_that_the_user_gives_is_not_automatic() -> None:
    settings = resolve("-n", "4", "--offline-mode=yes")

    assert (settings.offline, settings.offline_because_of) == (True, "")


def test_processes_without_ipus_are_exported_as_such() -> None:
    config_file.export(resolve("-n", "4"), "out.yaml", overwrite=True)

    assert Path("out.yaml").read_text() == (
        "num-instances: 4\nnum-replicas: 4\noffline-mode: true\n"
    )


def test_the_table_shows_what_counts_in_the_place_of_a_default() -> None:
    table = show_table(resolve("--numa-aware=no"))

    [row] = [line for line in table.splitlines() if "--process-placement " in line]
    assert row.split() == ["--process-placement", "see", "--numa-aware", "default"]


def test_a_variable_that_is_nearly_an_option_is_warned_about() -> None:
    given = {
        "POPRUN_NUM_REPLICA": "4",
        "POPRUN_HOSTS": "a",
        "POPRUN_N": "4",
        # Another's, not given, not an option's by name, and an option's own.
        "POPRUN_BUILD_DIRECTORY": "x",
        "POPRUN_NUM_INSTANCE": "",
        "POPRUN_VERSION": "3.3",
        "POPRUN_NUM_ILDS": "1",
    }

    assert resolve_settings([], given).warnings == [
        "The variable POPRUN_NUM_REPLICA is not an option of poprun and has no effect. "
        "Did you mean POPRUN_NUM_REPLICAS?",
        "The variable POPRUN_HOSTS is not an option of poprun and has no effect. "
        "Did you mean POPRUN_HOST?",
        "The variable POPRUN_N is not an option of poprun and has no effect. "
        "Did you mean POPRUN_NUM_PROCESSES?",
    ]


@pytest.mark.parametrize("exists", [False, True])
def test_what_is_exported_may_be_read_by_its_owner_alone(exists: bool) -> None:
    if exists:
        Path("out.yaml").touch(0o644)

    config_file.export(
        resolve("--mpi-local-args=-x KEY=S"), "out.yaml", overwrite=exists
    )

    assert Path("out.yaml").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "file", "numbers"),
    [
        (["-n", "4"], "", (4, 4)),
        (["-n", "4", "--num-replicas=8"], "", (4, 8)),
        (["-n", "4"], "num-replicas: 12\n", (4, 12)),
        (["-n", "4"], "num-instances: 2\n", (4, 4)),
        (["--num-instances=2"], "num-processes: 4\n", (2, 1)),
        ([], "num-processes: 4\n", (4, 4)),
    ],
)
def test_processes_are_instances_of_one_replica_unless_the_user_says(
    words: list[str], file: str, numbers: tuple[int, int]
) -> None:
    settings = resolve(job(file), *words)

    assert (settings["num-instances"], settings["num-replicas"]) == numbers
    assert not settings.is_given("num-processes")


def test_processes_and_instances_in_one_place_contradict_each_other() -> None:
    assert refused("-n", "4", "--num-instances", "4") == (
        "--num-processes and --num-instances are both given (command line), but they "
        "exclude each other.",
        ["Leave one of them out."],
    )


def test_a_leading_tilde_is_the_home_directory_in_every_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    paths = [
        o
        for o in OPTIONS.values()
        if o.read is types.read_path and o.name != "hostfile"
    ]
    for option in paths:
        if option.name != "import-config":
            assert resolve(f"{option.flag}=~/a/~/b")[option.name] == "/home/ann/a/~/b"
    assert resolve("--hostfile=~")["hostfile"] == "/home/ann"
    assert resolve(POPRUN_MPIRUN="~/bin/mpirun")["mpirun"] == "/home/ann/bin/mpirun"
    assert resolve("--mpirun=~ann/x")["mpirun"] == "~ann/x"
