from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poprun.errors import MpiArgumentError
from poprun.mpirun.arguments import (
    find_question,
    merge,
    parse_arguments,
    parse_output_directory,
)
from poprun.mpirun.hydra import Hydra
from poprun.mpirun.no_mpi import LocalLauncher
from poprun.mpirun.openmpi import OpenMpi4, OpenMpi5
from poprun.mpirun.option_table import LOCAL_ARGS
from poprun.mpirun.values import Mpi, MpirunArguments

parse_local = partial(parse_arguments, option=LOCAL_ARGS)

OPEN_MPIS = [OpenMpi4, OpenMpi5]
OTHERS = [Hydra, LocalLauncher]
ALL = OPEN_MPIS + OTHERS


def refusal(text: str, mpi: type[Mpi] = OpenMpi5) -> str:
    with pytest.raises(MpiArgumentError) as caught:
        parse_arguments(text, mpi)
    return str(caught.value)


@pytest.mark.parametrize("mpi", ALL)
def test_the_guides_arguments_are_understood_for_every_mpi(mpi: type[Mpi]) -> None:
    text = """--tag-output --output-filename 'my logs' --allow-run-as-root
        --bind-to none --npernode 2 -x PYTHONPATH -x A=1 -x B="x y" -x C="""

    assert parse_arguments(text, mpi) == MpirunArguments(
        tag_output=True,
        output_filename="my logs",
        allow_run_as_root=True,
        placement="disabled",
        npernode=2,
        exports={"PYTHONPATH": None, "A": "1", "B": "x y", "C": ""},
    )


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        ("--map-by socket", "roundrobin"),
        ("--map-by=numa:OVERSUBSCRIBE", "roundrobin"),
        ("--map-by package", "roundrobin"),
        ("--map-by core", "spreadcores"),
        ("--bycore", "spreadcores"),
        ("--map-by hwthread", "spreadcores"),
        ("--map-by slot", None),
        ("--map-by :OVERSUBSCRIBE", None),
        ("--map-by socket --bind-to core", "spreadcores"),
    ],
)
@pytest.mark.parametrize("mpi", ALL)
def test_a_mapping_is_a_placement(
    mpi: type[Mpi], text: str, placement: str | None
) -> None:
    assert parse_arguments(text, mpi) == MpirunArguments(placement=placement)


def test_a_mapping_says_how_many_instances_each_host_gets() -> None:
    text = "--map-by ppr:2:node:OVERSUBSCRIBE"

    assert parse_arguments(text, Hydra) == MpirunArguments(npernode=2)


@pytest.mark.parametrize(
    "text",
    ["node", "ppr:2:socket", "ppr:0:node", "ppr:x:node", "slot:PE=2", "core:span"],
)
def test_another_mapping_is_refused_with_the_options_that_decide(text: str) -> None:
    assert refusal(f"--map-by {text}") == (
        f"--mpi-global-args has --map-by {text!r}, but poprun maps only by "
        "slot, core, hwthread, numa, socket, package and ppr:N:node, with "
        ":oversubscribe or nothing after them. How many instances a host "
        "gets follows from --num-instances and --host, and which cores an "
        "instance gets from --process-placement."
    )


def test_an_empty_text_gives_no_arguments() -> None:
    assert parse_arguments(" \n ", Hydra) == MpirunArguments()
    assert parse_local("", OpenMpi5) == MpirunArguments()


REAL = (
    "--tag-output --allow-run-as-root --mca oob_tcp_if_include 10.10.0.0/16 "
    "--mca btl_tcp_if_include 10.10.0.0/16"
)


@pytest.mark.parametrize("mpi", OPEN_MPIS)
def test_parameters_are_passed_on_to_open_mpi(mpi: type[Mpi]) -> None:
    assert parse_arguments(REAL, mpi) == MpirunArguments(
        tag_output=True,
        allow_run_as_root=True,
        passed_on=(
            "--mca",
            "oob_tcp_if_include",
            "10.10.0.0/16",
            "--mca",
            "btl_tcp_if_include",
            "10.10.0.0/16",
        ),
    )


def test_parameters_of_open_mpi_mean_nothing_to_hydra() -> None:
    assert parse_arguments(REAL, Hydra) == MpirunArguments(
        tag_output=True,
        allow_run_as_root=True,
        warnings=(
            "--mpi-global-args has '--mca oob_tcp_if_include', which has no effect on "
            "hydra.",
            "--mpi-global-args has '--mca btl_tcp_if_include', which has no effect on "
            "hydra.",
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        "-tag-output -npernode 2 -output-filename d -bind-to core",
        "--tag-output --npernode=2 --output-filename=d --bind-to=core",
        "--tag-output -N 2 --output-filename d --bind-to core:overload-allowed",
        "-l -ppn 2 --output-filename d --bind-to hwthread",
    ],
)
def test_one_dash_two_dashes_and_equals_signs_are_the_same(text: str) -> None:
    assert parse_arguments(text, Hydra) == MpirunArguments(
        tag_output=True, npernode=2, output_filename="d", placement="spreadcores"
    )


@pytest.mark.parametrize("place", ["numa", "socket", "package"])
def test_binding_to_a_node_is_a_placement(place: str) -> None:
    assert parse_arguments(f"--bind-to {place}", OpenMpi4).placement == "spreadnuma"


def test_an_unknown_place_to_bind_to_is_refused() -> None:
    assert refusal("--bind-to moon") == (
        "--mpi-global-args has --bind-to 'moon', but poprun binds only to none, core, "
        "hwthread, numa, socket, package. See --process-placement."
    )


@pytest.mark.parametrize("mpi", OPEN_MPIS)
def test_unknown_options_are_passed_on_to_open_mpi(mpi: type[Mpi]) -> None:
    text = "--use-regexp --tag-output --tree 3 -fast --set=a=b --prefix /opt/mpi"

    assert parse_arguments(text, mpi).passed_on == (
        "--use-regexp",
        "--tree",
        "3",
        "-fast",
        "--set=a=b",
        "--prefix",
        "/opt/mpi",
    )


def test_unknown_options_are_refused_for_hydra() -> None:
    assert refusal("--tree 3", Hydra) == (
        "--mpi-global-args has '--tree', which poprun cannot translate for "
        "hydra. Leave it out, or choose Open MPI with --mpirun."
    )


def test_options_of_open_mpi_that_are_known_have_no_effect_on_hydra() -> None:
    assert parse_arguments("--prefix=/opt --use-hwthread-cpus", Hydra).warnings == (
        "--mpi-global-args has '--prefix', which has no effect on hydra.",
        "--mpi-global-args has '--use-hwthread-cpus', which has no effect on hydra.",
    )


@pytest.mark.parametrize("mpi", ALL)
def test_poprun_shows_the_instances_where_mpirun_would(mpi: type[Mpi]) -> None:
    assert parse_arguments("--report-bindings --display map", mpi) == MpirunArguments(
        show_instances=True
    )
    assert parse_local("--display-map", mpi).show_instances


@pytest.mark.parametrize("mpi", ALL)
def test_the_user_is_warned_of_mpiruns_prints_that_are_not_shown(
    mpi: type[Mpi],
) -> None:
    assert parse_arguments("--display-topo", mpi) == MpirunArguments(
        warnings=(
            "--mpi-global-args has '--display-topo', which has no effect: mpirun's "
            "output is shown only when it fails. lstopo shows the topology of a "
            "machine.",
        )
    )


@pytest.mark.parametrize("value", ["-", "+"])
def test_mpiruns_pid_is_written_to_files_only(value: str) -> None:
    assert refusal(f"--report-pid {value}") == (
        f"--mpi-global-args has --report-pid {value}, but mpirun's output is shown "
        "only when it fails. Name a file: --report-pid FILE."
    )
    assert parse_arguments("--report-pid f", OpenMpi4).passed_on == (
        "--report-pid",
        "f",
    )


def test_oversubscribing_is_what_every_mpi_does() -> None:
    assert parse_arguments("--oversubscribe -q", Hydra) == MpirunArguments()
    assert parse_arguments("--oversubscribe -q", OpenMpi5) == MpirunArguments(
        passed_on=("--oversubscribe",)
    )


def test_an_argument_that_is_given_twice_is_passed_on_once() -> None:
    text = "--mca btl self --use-regexp --gmca btl self --use-regexp --tag-output " * 2

    assert parse_arguments(text, OpenMpi5) == MpirunArguments(
        tag_output=True, passed_on=("--mca", "btl", "self", "--use-regexp")
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("--mca btl self --mca btl sm", "--mca btl twice, with 'self' and 'sm'"),
        ("--bind-to core --bind-to none", "--bind-to twice, with 'core' and 'none'"),
        ("-N 1 --npernode 2", "--npernode twice, with '1' and '2'"),
        ("--prefix /a --prefix /b", "--prefix twice, with '/a' and '/b'"),
    ],
)
def test_what_contradicts_itself_is_refused(text: str, what: str) -> None:
    assert refusal(text) == f"--mpi-global-args has {what}. Leave one of them out."


def test_of_a_variable_the_last_value_counts() -> None:
    exports = parse_arguments("-x A=1 -x B -x A=2", OpenMpi5).exports

    assert list(exports.items()) == [("B", None), ("A", "2")]


@pytest.mark.parametrize(
    ("text", "word", "reason"),
    [
        ("-np 4", "-np", "one process for each instance. Ask for --num-instances."),
        ("--n=4", "--n", "one process for each instance. Ask for --num-instances."),
        ("-H a,b", "-H", "Use poprun's own --host."),
        ("--hostfile f", "--hostfile", "Use poprun's own --host."),
        (
            "--timeout 9",
            "--timeout",
            "stops the job itself. Use poprun's own --timeout.",
        ),
        ("--stdin all", "--stdin", "the input itself. Use poprun's own --stdin."),
        ("--version", "--version", "question: give it in --mpi-global-args."),
        ("--rank-by=slot", "--rank-by", "Use poprun's own --process-placement."),
        ("--preload-binary", "--preload-binary", "copies no files."),
        ("-s", "-s", "copies no files."),
        ("--xterm 1", "--xterm", "Attach the debugger to an instance by its PID"),
        ("--cpu-set=0,1", "--cpu-set", "Start it with taskset --cpu-list LIST poprun"),
        ("--max-restarts 3", "--max-restarts", "Use poprun's own --keep-going."),
        ("-genv A 1", "-genv", "for all MPIs: -x NAME=VALUE."),
    ],
)
@pytest.mark.parametrize("mpi", ALL)
def test_what_contradicts_poprun_is_refused_by_name(
    mpi: type[Mpi], text: str, word: str, reason: str
) -> None:
    message = refusal(text, mpi)

    assert message.startswith(f"--mpi-global-args has {word!r}, which contradicts ")
    assert reason in message


def test_a_colon_is_refused() -> None:
    assert refusal("--tag-output : -x A=1") == (
        "--mpi-global-args has ':', which would start another program. "
        "Write programs after poprun's own options: poprun -n 1 a : -n 3 b"
    )


def test_a_word_that_is_no_option_is_refused() -> None:
    assert refusal("-x A=b c") == (
        "--mpi-global-args contains 'c' where an option should be. mpirun would take "
        "it for the program. If it is part of a value, put "
        "quotes around the value."
    )


@pytest.mark.parametrize("text", ["-x 'A=1", '-x A="', "-x A=\\"])
def test_an_open_quote_is_refused(text: str) -> None:
    assert refusal(text) == (
        f"--mpi-global-args is {text!r}, in which a quote is opened and not "
        "closed, or the last argument is a single backslash. It is split "
        'as in a shell: to have a quote in a value, write it as \\" or '
        "within quotes of the other kind."
    )


def test_a_missing_value_is_refused() -> None:
    assert refusal("--mca btl") == (
        "--mpi-global-args ends with '--mca', which needs 2 values. "
        "Put quotes around the whole value of --mpi-global-args."
    )


def test_the_error_about_an_x_at_the_end_asks_for_quotes() -> None:
    assert refusal("--tag-output -x") == (
        "--mpi-global-args ends with '-x', and a name must follow. Put quotes around "
        'the whole value: --mpi-global-args "-x NAME=VALUE".'
    )
    with pytest.raises(MpiArgumentError) as caught:
        parse_local("-x", Hydra, option="--instance-mpi-local-args")
    assert str(caught.value) == (
        "--instance-mpi-local-args ends with '-x', and a name must follow. Put quotes "
        'around the whole value: --instance-mpi-local-args "1:-x NAME=VALUE".'
    )


@pytest.mark.parametrize(
    ("word", "name"),
    [("A-B=1", "A-B"), ("1A", "1A"), ("=x", ""), ("FOO*=1", "FOO*"), ("*", "*")],
)
def test_a_name_that_no_variable_can_have_is_refused(word: str, name: str) -> None:
    assert refusal(f"-x {word}") == (
        f"--mpi-global-args has -x {word!r}, but {name!r} cannot be the name of a "
        "variable: a name consists of letters, digits and '_', and does not begin with "
        "a digit. Write -x NAME, -x NAME=VALUE, or -x NAME* for all names that begin "
        "with NAME."
    )


def test_the_place_of_an_instance_is_not_the_users_to_set() -> None:
    assert refusal("-x POPDIST_NUM_TOTAL_REPLICAS=3") == (
        "--mpi-global-args has -x 'POPDIST_NUM_TOTAL_REPLICAS=3', but "
        "POPDIST_NUM_TOTAL_REPLICAS is set by poprun for each instance. Leave it out."
    )
    assert "POPDIST_JOB_ID is set by poprun" in refusal("-x POPDIST_JOB_ID")


def test_what_concerns_the_ipus_is_the_users_to_set() -> None:
    arguments = parse_arguments("-x IPUOF_VIPU_API_TIMEOUT=800", OpenMpi5)

    assert arguments.exports == {"IPUOF_VIPU_API_TIMEOUT": "800"}


@pytest.mark.parametrize("number", ["0", "-1", "two", "²"])
def test_npernode_is_a_number(number: str) -> None:
    assert refusal(f"--npernode {number}") == (
        f"--mpi-global-args has --npernode {number!r}, but that must be 1 or more."
    )


@pytest.mark.parametrize(
    "directory", ["", ":nocopy", "logs:nojobid,nocopy", "a%r:pattern", "a:copy,nocopy"]
)
def test_the_files_for_output_have_one_layout(directory: str) -> None:
    assert refusal(f"--output-filename '{directory}'") == (
        f"--output-filename in --mpi-global-args is {directory!r}, but must "
        "be the name of a directory, with :nocopy after it to have no copy "
        "on the console. poprun names the files in it: rank.N/stdout and "
        "stderr."
    )


@pytest.mark.parametrize(
    ("value", "directory", "nocopy"),
    [
        ("logs", "logs", False),
        ("logs:nocopy", "logs", True),
        ("logs:NOCOPY", "logs", True),
        ("logs:copy", "logs", False),
        ("a:b", "a:b", False),
        ("a:b:nocopy", "a:b", True),
    ],
)
def test_a_directory_for_output_may_say_that_there_is_no_copy(
    value: str, directory: str, nocopy: bool
) -> None:
    assert parse_output_directory(value, "--output-filename") == (directory, nocopy)


@pytest.mark.parametrize("mpi", ALL)
def test_options_for_the_output_are_carried_out(mpi: type[Mpi]) -> None:
    text = (
        "--timestamp-output --merge-stderr-to-stdout --xml --output-filename d:nocopy"
    )

    assert parse_arguments(text, mpi) == MpirunArguments(
        timestamp_output=True,
        merge_stderr=True,
        xml=True,
        output_filename="d",
        output_nocopy=True,
    )


def test_the_output_option_of_open_mpi_5_is_carried_out() -> None:
    text = "--output TAG,merge,time --output dir=logs --output nocopy,xml"

    assert parse_arguments(text, OpenMpi5) == MpirunArguments(
        tag_output=True,
        timestamp_output=True,
        merge_stderr=True,
        xml=True,
        output_filename="logs",
        output_nocopy=True,
    )


@pytest.mark.parametrize("word", ["tag-detailed", "file=x", "raw", "", "t", "tag=1"])
def test_other_words_for_the_output_are_refused(word: str) -> None:
    assert refusal(f"--output '{word}'") == (
        f"--mpi-global-args has --output {word!r}, but poprun handles the output of "
        f"the instances itself and supports only tag, timestamp, xml, "
        "merge-stderr-to-stdout, nocopy and dir=DIRECTORY."
    )


@pytest.mark.parametrize("word", ["-wd", "--wd", "-wdir", "--wdir"])
def test_a_working_directory_may_be_asked_for(word: str) -> None:
    assert parse_arguments(f"{word} /x", OpenMpi4).wdir == "/x"
    assert parse_local(f"{word} /x", Hydra).wdir == "/x"


def test_a_working_directory_has_a_name() -> None:
    assert refusal("--wdir=") == (
        "--mpi-global-args has '--wdir' with an empty value. Name a directory."
    )


def test_all_variables_of_one_beginning_may_be_exported() -> None:
    assert parse_local("-x FOO*", OpenMpi4).exports == {"FOO*": None}


def test_set_env_is_another_name_for_x() -> None:
    assert parse_local("--set-env A=1", OpenMpi5).exports == {"A": "1"}
    assert refusal("--set-env A") == (
        "--mpi-global-args has --set-env 'A', which lacks a value. "
        "Write --set-env NAME=VALUE."
    )


def test_a_line_may_be_continued() -> None:
    arguments = parse_local("-x PATH \\\n   -x A=1\n-x B", OpenMpi5)

    assert list(arguments.exports) == ["PATH", "A", "B"]


def test_what_counts_for_the_job_may_stand_with_the_instances() -> None:
    local = parse_local(
        "--tag-output --output-filename d --bind-to core --allow-run-as-root -x A=1",
        Hydra,
    )

    assert local.exports == {"A": "1"}
    assert merge(MpirunArguments(xml=True), [local]) == MpirunArguments(
        tag_output=True,
        xml=True,
        output_filename="d",
        placement="spreadcores",
        allow_run_as_root=True,
    )


def test_places_that_contradict_each_other_about_the_job_are_refused() -> None:
    one, other = (
        MpirunArguments(output_filename="a"),
        parse_local("--output-filename b", Hydra),
    )

    with pytest.raises(MpiArgumentError) as caught:
        merge(one, [other])

    assert str(caught.value) == (
        "--output-filename applies to the whole job, but is given as 'a' "
        "and as 'b'. Leave one of them out."
    )


@given(st.text(), st.sampled_from(ALL))
def test_any_text_is_understood_or_refused(text: str, mpi: type[Mpi]) -> None:
    try:
        arguments = parse_arguments(text, mpi)
    except MpiArgumentError:
        return

    assert ":" not in arguments.passed_on


@given(st.text(st.characters(exclude_characters="'\0\\")))
def test_any_quoted_value_arrives_as_it_is(value: str) -> None:
    assert parse_local(f"-x 'A={value}'", OpenMpi5).exports == {"A": value}


@pytest.mark.parametrize("option", ["--nocopy", "--show-instances"])
def test_names_that_only_poprun_uses_are_no_options(option: str) -> None:
    assert parse_arguments(option, OpenMpi5) == MpirunArguments(passed_on=(option,))


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("--version", ["--version"]),
        ("--tag-output -V", ["-V"]),
        ("--help bind-to", ["--help", "bind-to"]),
        ("-x version --mca help a", []),
    ],
)
def test_a_question_for_mpirun_is_found(text: str, question: list[str]) -> None:
    assert find_question(text) == question
