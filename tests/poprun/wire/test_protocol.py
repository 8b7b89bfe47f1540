import pytest
from hypothesis import given
from hypothesis import strategies as st

from poprun.wire import protocol
from poprun.wire.protocol import MAX_LENGTH, Decoder, Spec, pack

kinds = st.integers(0, 255)
messages = st.tuples(kinds, st.lists(st.binary(max_size=40), max_size=6))
words = st.lists(st.binary(max_size=20), max_size=5)
numbers = st.lists(st.integers(0, 5000), max_size=5)


def decoded(data: bytes) -> list[tuple[int, list[bytes]]]:
    return Decoder().feed(data)


def test_a_message_is_its_length_its_kind_and_each_field_with_its_length() -> None:
    assert pack(protocol.HELLO, 1, b"job", b"") == (
        b"\0\0\0\x11\x01\0\0\0\x011\0\0\0\x03job\0\0\0\0"
    )


def test_whole_numbers_are_written_in_decimal() -> None:
    assert decoded(pack(protocol.STARTED, 4194304, 0)) == [
        (protocol.STARTED, [b"4194304", b"0"])
    ]


def test_the_kinds_are_all_different() -> None:
    kinds = [
        *(
            protocol.HELLO,
            protocol.STARTED,
            protocol.REFUSED,
            protocol.EXITED,
            protocol.CLEAN,
        ),
        *(protocol.SPEC, protocol.SIGNAL, protocol.KILL, protocol.RELEASE),
        *(
            protocol.START,
            protocol.ADOPT,
            protocol.END_ACTION,
            protocol.KNOWN,
            protocol.SIGNAL_MPIRUN,
        ),
        *(
            protocol.FINISH,
            protocol.MPIRUN_STARTED,
            protocol.MPIRUN_REFUSED,
            protocol.MPIRUN_EXITED,
        ),
        protocol.FINISHED,
    ]

    assert len(set(kinds)) == len(kinds)


@given(st.lists(messages, max_size=5), st.data())
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(
    sent: list[tuple[int, list[bytes]]], data: st.DataObject
) -> None:
    stream = b"".join(pack(kind, *fields) for kind, fields in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    decoder = Decoder()

    received = [
        message
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for message in decoder.feed(stream[start:end])
    ]

    assert received == sent


def test_a_message_is_out_with_its_last_byte_and_not_before() -> None:
    decoder = Decoder()
    stream = pack(protocol.SIGNAL, 15)

    assert [decoder.feed(stream[i : i + 1]) for i in range(len(stream))] == [
        *([[]] * (len(stream) - 1)),
        [(protocol.SIGNAL, [b"15"])],
    ]


def test_a_value_of_many_megabytes_gets_through() -> None:
    value = bytes(range(256)) * (1 << 14)

    assert decoded(pack(protocol.SPEC, value)) == [(protocol.SPEC, [value])]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"\0\0\0\0", "a message of 0 bytes", id="no-kind"),
        pytest.param(b"GET / HTTP/1.1", "a message of 1195725856 bytes", id="http"),
        pytest.param(
            (MAX_LENGTH + 1).to_bytes(4, "big"),
            "a message of 268435457 bytes",
            id="too-long",
        ),
        pytest.param(
            b"\0\0\0\x06\x01\0\0\0\x02x",
            "a field that is longer than its message",
            id="field-too-long",
        ),
        pytest.param(
            b"\0\0\0\x03\x01\0\0",
            "a field that is longer than its message",
            id="half-a-length",
        ),
    ],
)
def test_another_language_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}$"):
        decoded(data)


@given(st.binary(max_size=60))
def test_noise_is_refused_or_waited_for_and_never_anything_else(data: bytes) -> None:
    try:
        received = decoded(data)
    except ValueError:
        return
    stream = b"".join(pack(kind, *fields) for kind, fields in received)
    assert data.startswith(stream)


@given(
    argv=words,
    environment=words,
    path=st.binary(max_size=20),
    cwd=st.binary(max_size=20),
    cpus=numbers,
    nodes=numbers,
    grace_ms=st.integers(0, 10**7),
    ignored=numbers,
)
def test_a_shim_reads_what_poprun_wrote(
    argv: list[bytes],
    environment: list[bytes],
    path: bytes,
    cwd: bytes,
    cpus: list[int],
    nodes: list[int],
    grace_ms: int,
    ignored: list[int],
) -> None:
    message = Spec(
        path=path,
        argv=argv,
        environment=environment,
        cwd=cwd,
        mpi_prefixes=[b"OMPI_"],
        mpirun_prefixes=[b"OMPI_MCA_rmaps_"],
        users=[],
        cpus=cpus,
        memory_nodes=nodes,
        stdin=b"/dev/null",
        grace_ms=grace_ms,
        ignored=ignored,
        terminals=(False, True),
        size=(24, 80),
        merge_stderr=False,
        open_files=0,
        umask=0o022,
    ).pack()

    [(kind, fields)] = decoded(message)
    spec = Spec.read(fields)

    assert kind == protocol.SPEC
    assert (spec.path, spec.argv, spec.environment) == (path, argv, environment)
    assert (spec.cwd, spec.cpus, spec.memory_nodes) == (cwd, cpus, nodes)
    assert (spec.stdin, spec.ignored) == (b"/dev/null", ignored)
    assert (spec.terminals, spec.size) == ([0, 1], [24, 80])
    assert (spec.merge_stderr, spec.open_files, spec.umask) == (0, 0, 0o022)
    assert spec.grace_ms == grace_ms


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"OMPI_COMM_WORLD_RANK", True),
        (b"PMIX_RANK", True),
        (b"OMPI_MCA_rmaps_base_oversubscribe", False),
        (b"OMPI_MCA_btl", False),
        (b"OMPI_MCA_btl_tcp_if_include", True),
        (b"MY_OMPI_RANK", False),
        (b"TMPDIR", False),
    ],
)
def test_mpi_sets_what_has_one_of_its_prefixes(name: bytes, expected: bool) -> None:
    message = Spec(
        path=b"/bin/true",
        argv=[],
        environment=[],
        cwd=b"/",
        mpi_prefixes=[b"OMPI_", b"PMI"],
        mpirun_prefixes=[b"OMPI_MCA_rmaps_", b"PRTE_MCA_"],
        users=[b"OMPI_MCA_btl"],
        cpus=[],
        memory_nodes=[],
        stdin=b"/dev/null",
        grace_ms=0,
        ignored=[],
        terminals=(False, True),
        size=(24, 80),
        merge_stderr=False,
        open_files=0,
        umask=0o022,
    ).pack()

    assert Spec.read(decoded(message)[0][1]).is_set_by_mpi(name) is expected
