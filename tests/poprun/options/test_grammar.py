import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poprun.errors import OptionError
from poprun.options.completion import complete
from poprun.options.grammar import parse
from poprun.options.other_launchers import ADVICE
from poprun.options.table import BY_NAME, OPTIONS


def read(*words: str) -> tuple[list[tuple[str, str]], list[str]]:
    line = parse(words)
    return [(option.name, text) for option, text in line.options], list(line.program)


def refused(*words: str) -> tuple[str, list[str]]:
    with pytest.raises(OptionError) as refusal:
        parse(words)
    return str(refusal.value), getattr(refusal.value, "__notes__", [])


def test_the_first_other_word_is_the_program_and_the_rest_is_its_own() -> None:
    program = ["python", "--num-replicas", "4", "::", "--", "-vv", "a b", "\udcff", ""]

    assert read("--num-replicas", "8", *program) == ([("num-replicas", "8")], program)


def test_a_value_follows_an_equals_sign_or_a_space() -> None:
    assert read("--host=a,b", "--vipu-partition", "p=1", "x") == (
        [("host", "a,b"), ("vipu-partition", "p=1")],
        ["x"],
    )


def test_an_equals_sign_in_the_value_belongs_to_it() -> None:
    assert read("--mpi-local-args=-x A=B", "x")[0] == [("mpi-local-args", "-x A=B")]


def test_a_value_may_be_empty_after_an_equals_sign() -> None:
    assert read("--mpi-global-args=", "x") == ([("mpi-global-args", "")], ["x"])


def test_two_dashes_end_the_options() -> None:
    assert read("-v", "--", "--num-replicas", "x") == (
        [("verbose", "1")],
        ["--num-replicas", "x"],
    )


def test_one_dash_alone_is_no_option() -> None:
    assert read("-", "-v") == ([], ["-", "-v"])


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["-v"], [("verbose", "1")]),
        (["-vv"], [("verbose", "1"), ("verbose", "1")]),
        (["--verbose"], [("verbose", "1")]),
        (["--vv"], [("vv", "yes")]),
        (["-H", "a,b"], [("host", "a,b")]),
        (["-Ha,b"], [("host", "a,b")]),
        (["-H=a,b"], [("host", "a,b")]),
        (["-vHa"], [("verbose", "1"), ("host", "a")]),
        (["-vH", "a"], [("verbose", "1"), ("host", "a")]),
        (["-h"], [("help", "yes")]),
        (["--host-file", "f"], [("hostfile", "f")]),
        (["--dry-run"], [("dry-run", "yes")]),
        (["--dry-run=no"], [("dry-run", "no")]),
    ],
)
def test_short_names_aliases_and_flags(
    words: list[str], given: list[tuple[str, str]]
) -> None:
    assert read(*words, "program") == (given, ["program"])


def test_a_value_may_look_like_an_option_that_is_not_ours() -> None:
    assert read("--mpi-global-args", "--tag-output", "x") == (
        [("mpi-global-args", "--tag-output")],
        ["x"],
    )
    assert read("--mpi-local-args", "-x A=B", "x")[0] == [("mpi-local-args", "-x A=B")]
    assert read("--num-replicas", "-3", "x")[0] == [("num-replicas", "-3")]


@pytest.mark.parametrize("next_word", ["--num-replicas", "--host=a", "-v", "-vv", "-H"])
def test_an_option_of_ours_is_no_value(next_word: str) -> None:
    assert refused("--vipu-partition", next_word, "2") == (
        f"The value of --vipu-partition is missing before {next_word}.",
        [
            f"Write --vipu-partition=NAME. If {next_word} is the value, "
            f"write --vipu-partition={next_word}."
        ],
    )


def test_a_value_can_be_missing_at_the_end_or_before_two_dashes() -> None:
    assert refused("--print-topology") == (
        "The value of --print-topology is missing at the end of the line.",
        ["Write --print-topology=yes."],
    )
    assert refused("--process-placement", "--", "x") == (
        "The value of --process-placement is missing before --.",
        ["Write --process-placement=spreadnuma."],
    )
    # Another option is not hinted at as a value that it cannot be.
    assert refused("--update-partition", "--vipu-partition=q", "x") == (
        "The value of --update-partition is missing before --vipu-partition=q.",
        ["Write --update-partition=yes."],
    )


def test_repeated_options_are_collected_in_order() -> None:
    assert read("--mpi-global-args=a", "-v", "--mpi-global-args=b", "x")[0] == [
        ("mpi-global-args", "a"),
        ("verbose", "1"),
        ("mpi-global-args", "b"),
    ]


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("num-instance", "num-instances"),
        ("num-r", "num-replicas"),
        ("host-f", "hostfile"),
        ("s", None),
        ("sync-", "sync-type"),
        ("pr", None),
        ("pri", "print-topology"),
        # Ours (--dry-run) do not count where PopRun has more than one already.
        ("d", None),
        ("mpi-g", "mpi-global-args"),
        ("keep", "keep-going"),
        ("time", "timeout"),
        ("top", "topology-format"),
    ],
)
def test_a_unique_prefix_is_enough(prefix: str, name: str | None) -> None:
    if name is None:
        assert "is ambiguous" in refused(f"--{prefix}=1", "x")[0]
    else:
        assert read(f"--{prefix}=1", "x")[0] == [(name, "1")]


def test_options_of_ours_make_no_prefix_of_the_vendors_ambiguous() -> None:
    # --sync-type and others begin with --s, and so do our --stdin and --show-config.
    assert refused("--s", "x")[0] == (
        "--s is ambiguous: it can be --synchronise-python-venv, "
        "--synchronise-poplar-sdk or --sync-type."
    )
    assert refused("--mpi", "x")[0] == (
        "--mpi is ambiguous: it can be --mpi-global-args or --mpi-local-args."
    )
    assert read("--mpir", "m", "x")[0] == [("mpirun", "m")]


def test_an_ambiguous_prefix_names_the_candidates() -> None:
    assert refused("--num", "4", "x")[0] == (
        "--num is ambiguous: it can be --num-instances, --num-replicas, --num-ilds "
        "or --numa-aware."
    )
    assert refused("--n", "4", "x")[1] == ["Did you mean -n?"]
    assert refused("--st", "4", "x")[0] == (
        "--st is ambiguous: it can be --stdin or --start-timeout."
    )


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--num-replcas", "Did you mean --num-replicas?"),
        ("--num_replicas", "Did you mean --num-replicas?"),
        ("--Num-Replicas", "Did you mean --num-replicas?"),
        ("--vipu-parttion", "Did you mean --vipu-partition?"),
        ("-N", "Did you mean -n, the number of instances?"),
        ("-V", "Did you mean --version?"),
        (
            "--nproc_per_node",
            "It is the number of processes per host. Write -n N with the total "
            "number, or -n auto for one per CPU.",
        ),
        (
            "-m",
            "It names a Python module. Write: poprun [OPTIONS] python -m MODULE.",
        ),
        (
            "--main_process_port",
            "poprun chooses MASTER_ADDR and MASTER_PORT for each job. Leave it out.",
        ),
        (
            "--rank-by",
            "It is an option of mpirun. Instances are numbered in the order of hosts, "
            "and poprun assigns their cores itself. Use poprun's own "
            "--process-placement.",
        ),
        ("-x", "It sets variables. Write --env NAME=VALUE."),
        ("--config", "It names a file of options. Write --import-config FILE."),
        (
            "-c",
            "For the number of processes write -n N; to assign cores use "
            "--process-placement.",
        ),
        (
            "--tag-output",
            'It is an option of mpirun: write --mpi-global-args="--tag-output".',
        ),
        ("--nprocs", "It is the number of processes. Write -n N."),
        (
            "--map-by",
            'It is an option of mpirun: write --mpi-global-args="--map-by 4".',
        ),
        ("-wd", "It is the directory to run in. Write --cwd DIR."),
        ("--xml", 'It is an option of mpirun: write --mpi-global-args="--xml".'),
        ("--zzz", "'poprun --help' lists all options."),
    ],
)
def test_an_unknown_option_is_refused_with_what_may_be_meant(
    word: str, hint: str
) -> None:
    assert refused(word, "4", "x") == (f"poprun has no option {word}.", [hint])


def test_an_option_of_another_launcher_is_known_with_its_value_too() -> None:
    assert refused("--label=4", "x")[1] == [
        "It tags each line of output. Write --tag-format=short."
    ]
    assert refused("-N=4", "x")[1] == ["Did you mean -n, the number of instances?"]
    for words in (["--display", "map", "x"], ["--display=map", "x"]):
        assert refused(*words)[1] == [
            'It is an option of mpirun: write --mpi-global-args="--display map".'
        ]


def test_no_option_of_poprun_is_taken_for_that_of_another_launcher() -> None:
    for flag, hint in ADVICE.items():
        assert refused(flag, "x")[1] == [hint]


def test_advice_names_options_that_exist() -> None:
    for advice in ADVICE.values():
        named = re.findall("--([a-z-]+)", re.sub('"-.*?"', "", advice))
        assert set(named) <= BY_NAME.keys(), advice


PER_HOST = (
    "It is the number of processes per host. Write -n N with the total "
    "number, or -n auto for one per CPU."
)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["-ppn", "1"], PER_HOST),
        (["-ppn=1"], PER_HOST),
        (["--npernode", "1"], PER_HOST),
        (["-npernode", "1"], PER_HOST),
        (["-nproc_per_node=1"], PER_HOST),
        (["-ntasks", "4"], "It is the number of processes. Write -n N."),
        (["-nproc", "4"], "Did you mean --nproc?"),
        (["-quiet"], "Did you mean --quiet?"),
        (["-host", "a"], "Did you mean --host?"),
    ],
)
def test_a_long_option_with_one_hyphen_is_answered_as_one(
    words: list[str], hint: str
) -> None:
    assert refused(*words, "x") == (f"poprun has no option {words[0]}.", [hint])


@pytest.mark.parametrize(
    "words",
    [["-n", "4"], ["-n4"], ["-np", "4"], ["-np=4"], ["--np", "4"], ["--num-proc=4"]],
)
def test_mpiruns_number_of_processes_is_understood(words: list[str]) -> None:
    assert read(*words, "x") == ([("num-processes", "4")], ["x"])


def test_an_unknown_short_option_is_refused_with_its_whole_word() -> None:
    assert refused("-vz", "x")[0] == "poprun has no option -vz."


def test_an_unknown_option_that_cannot_be_printed_is_quoted() -> None:
    assert refused("--\udcff\n")[0] == r"poprun has no option '--\udcff\n'."


@pytest.mark.parametrize("dash", ["\u2013", "\u2014", "\u2212"])
def test_a_dash_out_of_a_document_is_no_program(dash: str) -> None:
    assert refused(f"{dash}num-replicas", "4", "x") == (
        f"'{dash}num-replicas' begins with a dash that is not a hyphen, "
        "as in text copied from a document.",
        ["Did you mean --num-replicas?"],
    )
    assert read("--", f"{dash}num-replicas") == ([], [f"{dash}num-replicas"])


def test_no_words_are_no_options_and_no_program() -> None:
    assert read() == ([], [])


WORDS = st.one_of(
    st.text(alphabet=st.characters(codec=None), max_size=8),
    st.sampled_from([f"--{name}" for name in BY_NAME]),
    st.sampled_from([f"--{name}=1" for name in BY_NAME]),
    st.sampled_from(["-v", "-H", "--", "=", ":", "\udcff"]),
)


@given(st.lists(WORDS, max_size=6))
def test_any_words_are_taken_apart_or_refused_in_a_sentence(words: list[str]) -> None:
    sentence = "."
    program: list[str] = []
    try:
        program = list(parse(words).last.program)
    except OptionError as error:
        sentence = str(error)

    assert sentence.endswith(".")
    assert program == words[len(words) - len(program) :]


@given(st.lists(WORDS, max_size=6))
def test_completion_offers_something_or_refuses_any_words(words: list[str]) -> None:
    kinds: set[str] = set()
    sentence = "."
    try:
        kinds = {item.type for item in complete(words, "")}
    except OptionError as error:
        sentence = str(error)

    assert sentence.endswith(".")
    assert kinds <= {"plain", "file", "dir"}


def texts(words: list[str], begun: str) -> list[str]:
    return [item.value for item in complete(words, begun)]


def kinds(words: list[str], begun: str) -> list[tuple[str, str]]:
    return [(item.value, item.type) for item in complete(words, begun)]


def test_names_of_options_complete() -> None:
    assert texts(["-v"], "--num-i") == ["--num-instances", "--num-ilds"]
    assert len(texts([], "-")) == len(BY_NAME)
    assert complete([], "--ipus")[0].help == "How many IPUs each replica gets."


def test_choices_and_yes_or_no_complete_in_every_spelling() -> None:
    assert texts(["--process-placement"], "spread") == ["spreadnuma", "spreadcores"]
    assert texts(["--offline-mode"], "") == ["yes", "no"]
    assert texts([], "--offline-mode=y") == ["--offline-mode=yes"]
    assert texts([], "--offline=y") == ["--offline=yes"]
    # The three words that bash makes of it.
    assert texts(["--offline-mode", "="], "y") == ["yes"]
    assert texts(["--offline-mode"], "=") == ["yes", "no"]
    assert texts(["--keep-going", "=", "no"], "--num-r") == ["--num-replicas"]


def test_files_directories_and_programs_are_left_to_the_shell() -> None:
    assert kinds(["--hostfile"], "/e") == [("/e", "file")]
    assert kinds(["--executable-cache-path"], "/t") == [("/t", "dir")]
    assert kinds(["-v"], "pyt") == [("pyt", "file")]
    assert kinds(["-v", "python"], "--num") == [("--num", "file")]


def test_numbers_have_no_completion() -> None:
    assert complete(["--num-replicas"], "") == []


def test_every_option_can_be_given_by_its_names() -> None:
    for option in OPTIONS.values():
        for name in option.names:
            assert parse([f"--{name}=1", "x"]).options == ((option, "1"),)
