import pytest
from hypothesis import given
from hypothesis import strategies as st

from poprun.errors import OptionError
from poprun.options.table import (
    ADDED,
    BY_NAME,
    BY_SHORT,
    EXCLUSIVE,
    GROUPS,
    OPTIONS,
    RIVALS,
)
from poprun.options.types import Option, combine, item, variable
from poprun.output.selection import Selection


def refused(name: str, text: str, label: str = "") -> OptionError:
    option = OPTIONS[name]
    with pytest.raises(OptionError) as refusal:
        item(option, text, label or option.flag)
    return refusal.value


def test_every_option_of_the_guide_has_its_default() -> None:
    defaults = {
        "help": False,
        "host": None,
        "num-replicas": 1,
        "ipus-per-replica": 1,
        "num-instances": 1,
        "num-ilds": 1,
        "vipu-server-host": "localhost",
        "vipu-server-port": 8090,
        "vipu-server-timeout": 10,
        "vipu-partition": None,
        "update-partition": False,
        "reset-partition": None,
        "remove-partition": True,
        "vipu-cluster": None,
        "executable-cache-path": None,
        "mpi-global-args": (),
        "mpi-local-args": (),
        "numa-aware": None,
        "print-topology": False,
        "only-output-from-instance": None,
        # The guide's is no; ours follows what else is asked for.
        "offline-mode": None,
        "verbose": 0,
        "vv": False,
    }

    assert {name: OPTIONS[name].default for name in defaults} == defaults


def test_every_later_option_of_the_vendor_has_its_default() -> None:
    defaults = {
        "version": False,
        "version-format": "text",
        "import-config": None,
        "export-config": None,
        "overwrite-config": False,
        "debug": False,
        "hostfile": None,
        "vipu-partition-attempts": 1,
        "vipu-allocation": None,
        "ipu-link-routing-type": None,
        "gw-link-routing-type": None,
        "sync-type": None,
        "instance-mpi-local-args": (),
        "process-placement": "spreadnuma",
        "allow-run-as-root": None,
        "host-subnet": None,
        "synchronise-python-venv": False,
        "synchronise-poplar-sdk": False,
        "distribute-ssh-key": False,
    }

    assert {name: OPTIONS[name].default for name in defaults} == defaults


def test_the_options_that_poprun_alone_has_are_known_as_ours() -> None:
    assert {o.name: o.default for o in OPTIONS.values() if o.name in ADDED} == {
        "num-processes": None,
        "env": (),
        "sync": None,
        "cwd": None,
        "topology-format": "text",
        "mpirun": None,
        "pdb": None,
        "output-filename": None,
        "log-dir": None,
        "tag-format": "auto",
        "color": "auto",
        "trace": None,
        "dry-run": False,
        "show-config": False,
        "ssh": "ssh",
        "keep-going": False,
        "quiet": False,
        "grace": 5.0,
        "timeout": None,
        "start-timeout": 60.0,
        "stdin": "none",
        "tty": "auto",
        "progress": True,
        "wait-for-ipus": False,
        "emulate-sdk": "auto",
        "torch-backend": "gloo",
        "summary": None,
        "result": None,
        "events": None,
        "json": False,
        "max-restarts": 0,
        "min-instances": None,
        "nnodes": None,
        "host-discovery-script": None,
        "fixed-replicas": False,
    }


def test_the_groups_follow_the_task() -> None:
    assert list(GROUPS) == [
        "Topology",
        "Program",
        "Hosts",
        "V-IPU",
        "MPI",
        "Output",
        "Limits",
        "Elastic jobs",
        "Frameworks",
        "Debug and general",
    ]


def test_no_name_stands_twice() -> None:
    options = [option for group in GROUPS.values() for option in group]
    names = [name for option in options for name in option.names]

    assert len(names) == len(set(names)) == len(BY_NAME)
    assert {short: option.name for short, option in BY_SHORT.items()} == {
        "H": "host",
        "n": "num-processes",
        "q": "quiet",
        "v": "verbose",
        "h": "help",
    }


def test_rivals_know_each_other() -> None:
    assert {RIVALS[rival]: rival for rival in RIVALS.values()} == RIVALS
    assert OPTIONS.keys() >= RIVALS.keys() > EXCLUSIVE


def test_a_default_is_what_its_own_text_means() -> None:
    for option in OPTIONS.values():
        if isinstance(option.default, int | float | str):
            assert item(option, str(option.default), option.flag) == option.default


def test_a_variable_has_the_name_of_the_option() -> None:
    assert variable("num-replicas") == "POPRUN_NUM_REPLICAS"


@pytest.mark.parametrize(
    "text", ["", "1e3", " 4 ", "4 ", "+4", "\u0664", "\u00b2", "4.0", "0x4", "-", "-0"]
)
def test_only_plain_digits_are_a_number(text: str) -> None:
    assert str(refused("num-replicas", text)) == (
        f"--num-replicas is {text!r}, but must be a whole number in plain digits, "
        "such as 4, or auto."
    )


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("num-replicas", "0", "1 or more"),
        ("num-replicas", "-3", "1 or more"),
        ("num-instances", "1000000001", "at most 1000000000"),
        ("vipu-server-port", "0", "from 1 to 65535"),
        ("vipu-server-port", "65536", "from 1 to 65535"),
    ],
)
def test_a_number_out_of_range_is_refused_with_the_range(
    name: str, text: str, rule: str
) -> None:
    assert str(refused(name, text)) == f"--{name} is {text}, but must be {rule}."


def test_a_number_without_end_is_refused_in_one_line() -> None:
    assert str(refused("num-replicas", "9" * 100_000)) == (
        "--num-replicas is 99999999999999999999..., but must be at most 1000000000."
    )


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("0", Selection(ranges=((0, 0),))),
        ("0,4-7", Selection(ranges=((0, 0), (4, 7)))),
        ("first", Selection(ranges=((0, 0),))),
        ("FAILED", Selection(ranges=(), failed=True)),
        ("3-3,failed", Selection(ranges=((3, 3),), failed=True)),
        ("all", Selection()),
        ("2,all,failed", Selection()),
    ],
)
def test_a_set_of_instances(text: str, selection: Selection) -> None:
    assert item(OPTIONS["only-output-from-instance"], text, "") == selection


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        *(
            (text, "")
            for text in ("", "-1", "1-", "a", "0,,4", "1-2-3", "0 ", "\u0664")
        ),
        ("all,none", ""),
        ("7-4", "7-4 runs backwards; 4-7 would not."),
        ("0-9999999999", "No job has an instance 9999999999."),
    ],
)
def test_what_is_no_set_of_instances_is_refused(text: str, hint: str) -> None:
    error = refused("only-output-from-instance", text)

    assert str(error) == (
        f"--only-output-from-instance is {text!r}, but must be a set of instances, "
        "such as 0,4-7 or first,failed."
    )
    assert getattr(error, "__notes__", []) == ([hint] if hint else [])


@pytest.mark.parametrize("text", ["auto", "none", "short", "poprun"])
def test_a_form_of_tags_has_a_name(text: str) -> None:
    assert item(OPTIONS["tag-format"], text.upper(), "") == text


def test_a_form_of_tags_may_be_a_template() -> None:
    assert item(OPTIONS["tag-format"], "{host}: ", "") == "{host}: "
    assert str(refused("tag-format", "shrt")) == (
        "--tag-format is 'shrt', but must be auto, none, short or poprun, or a "
        "template with one of {instance} {host} {local_instance} {stream} {time} in "
        "it: it has no field."
    )


@given(st.integers(min_value=1, max_value=10**9))
def test_every_whole_number_in_range_is_read(number: int) -> None:
    assert item(OPTIONS["num-replicas"], str(number), "") == number
    assert item(OPTIONS["num-replicas"], f"00{number}", "") == number


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("0.25", 0.25), ("1h30m", 5400.0), ("250ms", 0.25)],
)
def test_times_are_seconds_or_have_units(text: str, seconds: float) -> None:
    assert item(OPTIONS["grace"], text, "") == seconds


@pytest.mark.parametrize("text", ["", "5x", "-1", "1e3", "nan", "9" * 10, "99999999d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    assert str(refused("grace", text)) == (
        f"--grace is {text!r}, but must be a number of seconds from 0 to 999999999, "
        "such as 5 or 0.5, or a duration such as 90s, 5m or 1h30m."
    )


@pytest.mark.parametrize("name", ["offline-mode", "keep-going"])
def test_yes_and_no_have_four_spellings_in_any_case(name: str) -> None:
    words = ["yes", "on", "true", "1", "YES", "True", "no", "off", "false", "0", "Off"]

    assert [item(OPTIONS[name], word, "") for word in words] == [True] * 4 + [
        True,
        True,
        *[False] * 5,
    ]


def test_a_program_taken_for_yes_or_no_is_refused_with_the_way_out() -> None:
    error = refused("offline-mode", "python3")

    assert str(error) == (
        "--offline-mode is 'python3', but must be yes or no "
        "(on and off, true and false, 1 and 0 mean the same)."
    )
    assert error.__notes__ == ["Write --offline-mode=yes or --offline-mode=no."]
    error = refused("emulate-sdk", "python3")
    assert str(error) == "--emulate-sdk is 'python3', but must be auto, yes or no."
    assert error.__notes__ == ["Write --emulate-sdk=yes or --emulate-sdk=no."]


def test_an_empty_text_is_refused() -> None:
    error = refused("vipu-partition", "")

    assert str(error) == "--vipu-partition is empty."
    assert error.__notes__ == [
        "Give it a value, or leave it out. Perhaps a variable of your shell is not set."
    ]


def test_a_choice_is_one_of_the_words_in_any_case() -> None:
    assert item(OPTIONS["process-placement"], "SpreadCores", "") == "spreadcores"
    assert str(refused("process-placement", "spread")) == (
        "--process-placement is 'spread', but must be spreadnuma, spreadcores "
        "or disabled."
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mpi-local-args", "-x"),
        ("mpi-global-args", "--tag-output -x "),
        ("instance-mpi-local-args", "0:-x"),
        ("instance-mpi-local-args", "11:-x A=1 -x"),
    ],
)
def test_a_bare_x_at_the_end_is_explained(name: str, text: str) -> None:
    error = refused(name, text)

    assert str(error) == (
        f"--{name} is {text!r}, which ends in -x with no variable after it."
    )
    assert error.__notes__ == [
        f'Put the whole value in quotes, as in --{name}="{text.strip()} NAME=VALUE".'
    ]


def test_arguments_for_one_instance_name_it_before_a_colon() -> None:
    option = OPTIONS["instance-mpi-local-args"]

    assert item(option, "12:-x A=B:C", "") == (12, "-x A=B:C")


@pytest.mark.parametrize("text", ["", "-x A=1", ":-x A=1", "a:-x A=1", "-1:-x A=1"])
def test_arguments_for_no_instance_are_refused(text: str) -> None:
    assert str(refused("instance-mpi-local-args", text)) == (
        f"--instance-mpi-local-args is {text!r}, but must be the index of an "
        'instance, a colon, and arguments for mpirun, such as "1:-x NAME=VALUE".'
    )


def test_a_refusal_begins_with_where_the_text_stands() -> None:
    assert str(refused("num-ilds", "0", "job.yaml:3: num-ilds")) == (
        "job.yaml:3: num-ilds is 0, but must be 1 or more."
    )


def test_the_last_of_several_counts_unless_they_add_up() -> None:
    assert combine(OPTIONS["num-replicas"], [2, 4]) == 4
    assert combine(OPTIONS["verbose"], [1, 1]) == 2
    assert combine(OPTIONS["mpi-global-args"], ["b", "a"]) == ("b", "a")


@given(st.sampled_from(list(OPTIONS.values())), st.text())
def test_any_text_is_read_or_refused_in_a_sentence(option: Option, text: str) -> None:
    sentence = f"{option.flag} is ."
    try:
        item(option, text, option.flag)
    except OptionError as error:
        sentence = str(error)

    assert sentence.startswith(option.flag)
    assert sentence.removeprefix(option.flag)[:4] in (" is ", " nam", " has")
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("sync-type", "ST_POD_NATIVE_DEFAULT", "pod-native-default"),
        ("sync-type", "st_c2_compatible", "c2-compatible"),
        ("sync-type", "pod-native-default", "pod-native-default"),
        ("ipu-link-routing-type", "ring-swnc", "ringswnc"),
        ("ipu-link-routing-type", "RINGSWNC", "ringswnc"),
        ("gw-link-routing-type", "DEFAULT", "default"),
    ],
)
def test_types_of_a_partition_have_the_names_of_poprun_and_of_v_ipu(
    name: str, text: str, value: str
) -> None:
    assert item(OPTIONS[name], text, f"--{name}") == value


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("sync-type", "nonsense", "c2-compatible or pod-native-default"),
        ("ipu-link-routing-type", "foo", "default, dnc, swnc, ringswnc or btnc"),
        ("gw-link-routing-type", "st_default", "default"),
        *(
            (
                "host-subnet",
                text,
                "a network in CIDR notation, such as 10.5.0.0/16",
            )
            for text in ("nonsense", "10.5.0.0", "10.5.0.0/33", "/8", "")
        ),
    ],
)
def test_what_no_partition_and_no_network_has_is_refused(
    name: str, text: str, rule: str
) -> None:
    with pytest.raises(OptionError) as caught:
        item(OPTIONS[name], text, f"--{name}")

    assert str(caught.value) == f"--{name} is {text!r}, but must be {rule}."


def test_an_empty_text_means_yes_as_in_the_original() -> None:
    assert item(OPTIONS["offline-mode"], "", "--offline-mode") is True
