import pytest
from jobs import Ended, outputs, run

# Every instance comes to the names in another order.
SHUFFLED = """
import random
names = [f"tensor{i}" for i in range(30)]
random.Random(rank).shuffle(names)

def number(name):
    return int(name.removeprefix("tensor"))
"""


@pytest.mark.usefixtures("each_transport")
@pytest.mark.parametrize("size", [2, 3, 5])
def test_threads_may_come_to_names_in_any_order(size: int) -> None:
    body = SHUFFLED + (
        "found = {}\n"
        "def add(name):\n"
        "    for _ in range(3):\n"
        "        data = np.full(2, number(name))\n"
        "        found[name] = collectives.allReduceSum(data, name).tolist()\n"
        "threads = [threading.Thread(target=add, args=[name]) for name in names]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "print([found[name][1] for name in sorted(names, key=number)])\n"
    )

    assert outputs(run(size, body)) == [str([size * i for i in range(30)])] * size


@pytest.mark.usefixtures("each_transport")
def test_one_thread_may_begin_names_in_any_order_with_async_op() -> None:
    body = SHUFFLED + (
        "handles = {\n"
        "    name: collectives.allReduceSum(\n"
        "        np.full(2, number(name)), name, async_op=True\n"
        "    )\n"
        "    for name in names\n"
        "}\n"
        "random.Random(rank + 10).shuffle(names)\n"
        "found = {name: handles[name].wait()[0].item() for name in names}\n"
        "print(sorted(found.values()), handles['tensor0'].test())\n"
    )

    assert outputs(run(3, body)) == [f"{[3 * i for i in range(30)]} True"] * 3


def test_a_callback_that_waits_for_a_named_call_is_refused() -> None:
    body = """
    refused = []
    called = threading.Event()

    def wait_for_calls(handle):
        for wait in (
            lambda: collectives.allReduceSum(np.ones(1), "third"),
            lambda: second.wait(),
        ):
            try:
                wait()
            except RuntimeError as error:
                refused.append(str(error).partition(" waits")[0])
        called.set()

    begin = threading.Event()
    from popdist.negotiation.named_calls import NamedCall, named_calls_among

    def start(group, name):
        begin.wait(200)
        group.barrier(name=name)

    call = NamedCall("first", "first", start)
    first = named_calls_among((0, 1)).submit(call, wait=False)
    second = collectives.allReduceSum(np.ones(1), "second", async_op=True)
    first.add_done_callback(wait_for_calls)
    begin.set()
    called.wait(200)
    print(refused, second.wait().tolist())
    """

    refused = ["A callback of add_done_callback"] * 2
    assert outputs(run(2, body)) == [f"{refused} [2.0]"] * 2


def test_the_thread_refers_to_no_data_of_a_call_that_is_over() -> None:
    # To free a tensor while Python ends would abort the process.
    body = """
    import functools, weakref
    from popdist.negotiation.named_calls import NamedCall, named_calls_among

    class Data(np.ndarray):
        pass

    class NotingEvent(threading.Event):
        def set(self):
            super().set()
            leftovers.extend(reference() is not None for reference in references)
            over.set()

    leftovers = []
    over = threading.Event()
    data, result = np.ones(100).view(Data), np.ones(100).view(Data)
    references = [weakref.ref(data), weakref.ref(result)]
    begin = threading.Event()

    def carry_out(data, result, group, name):
        begin.wait(200)
        group.barrier(name=name)
        return result

    carry_out = functools.partial(carry_out, data, result)
    call = NamedCall("call", "call", carry_out, data)
    handle = named_calls_among((0, 1)).submit(call, wait=False)
    handle._done = NotingEvent()
    del data, result, carry_out, call, handle
    begin.set()
    over.wait(200)
    print(leftovers)
    """

    assert outputs(run(2, body)) == ["[False, False]"] * 2


def test_calls_of_one_name_are_matched_in_the_order_in_which_they_are_made() -> None:
    body = """
    handles = [
        collectives.broadcast(np.array([10 * rank + i]), 0, "same", async_op=True)
        for i in range(20)
    ]
    print([handle.wait().item() for handle in handles])
    """

    assert outputs(run(3, body)) == [str(list(range(20)))] * 3


def test_calls_without_a_name_are_matched_by_their_order() -> None:
    body = """
    print([collectives.broadcast(np.array([i + rank]), 0).item() for i in range(5)])
    """

    assert outputs(run(2, body)) == ["[0, 1, 2, 3, 4]"] * 2


# How soon calls that never match are an error. Instances that start slowly are reported
# after that time, too.
STALL = {"POPDIST_STALL_TIMEOUT": "0.7"}


def said(ended: list[Ended]) -> list[str]:
    """Return what the instances printed, if they ended well, whatever was reported."""
    assert [one.code for one in ended] == [0] * len(ended)
    return [one.out.strip() for one in ended]


def out_of_order(here: str, there: str) -> str:
    return (
        f"Named collectives were called in different orders: instance 0 is in {here}, "
        f"but instance 1 waits in {there}, and has for 0.7 s, with all its threads "
        "that make such calls. Call them in one order, from threads, or with "
        "async_op=True."
    )


@pytest.mark.usefixtures("each_transport")
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_out_of_order_in_one_thread_is_an_error_on_all_instances(odd: int) -> None:
    body = f"""
    names = ["first", "second"]
    if rank == {odd}:
        names.reverse()
    try:
        for name in names:
            collectives.allReduceSum(np.ones(1), name)
    except popdist.MismatchError as error:
        print(error)
    """

    words = said(run(3, body, STALL))

    assert len(set(words)) == 1
    assert words[0].startswith(
        "Named collectives were called in different orders: instance 0 is in "
    )
    assert "'first'" in words[0]
    assert "'second'" in words[0]


def test_waiting_for_a_call_that_cannot_come_is_an_error_on_all_instances() -> None:
    body = """
    names = ["a", "c"] if rank else ["a", "b"]
    handles = [
        collectives.allReduceSum(np.ones(1), name, async_op=True) for name in names
    ]
    try:
        for handle in handles:
            handle.wait()
    except popdist.MismatchError as error:
        print(error)
    """

    assert said(run(2, body, STALL)) == [out_of_order("'b'", "'c'")] * 2


def test_a_call_waits_as_long_as_another_thread_can_make_the_awaited_one() -> None:
    body = """
    def late():
        time.sleep(1)
        collectives.barrier("first")

    if rank == 1:
        threading.Thread(target=late).start()
    else:
        collectives.barrier("first")
    print(collectives.allReduceSum(np.ones(1), "second").tolist())
    """

    assert outputs(run(2, body)) == ["[2.0]"] * 2


def test_one_name_may_mean_two_tensors_of_two_communicators() -> None:
    body = """
    for communicator in ("one", "two"):
        popdist.registerCommunicator([0, 1], communicator)
    order = ["one", "two"] if rank else ["two", "one"]
    values = {"one": 1, "two": 10}
    handles = {
        key: collectives.allReduceSum(np.array([values[key]]), "w", key, async_op=True)
        for key in order
    }
    print([handles[key].wait().item() for key in ("one", "two")])
    """

    assert outputs(run(2, body)) == ["[2, 20]"] * 2


def test_calls_beside_the_program_share_one_thread() -> None:
    body = SHUFFLED + (
        "before = threading.active_count()\n"
        "handles, most = [], before\n"
        "for name in names * 10:\n"
        "    handles.append(collectives.allReduceSum(\n"
        "        np.full(2, number(name)), name, async_op=True\n"
        "    ))\n"
        "    most = max(most, threading.active_count())\n"
        "found = sum(handle.wait()[0].item() for handle in handles)\n"
        "while threading.active_count() > before: time.sleep(0.01)\n"
        "print(found, most - before)\n"
    )

    assert outputs(run(2, body)) == [f"{2 * 10 * sum(range(30))} 1"] * 2


def test_a_call_that_is_interrupted_as_it_comes_keeps_no_other_waiting() -> None:
    body = """
    from popdist.negotiation.named_calls import named_calls_among
    collectives.allReduceSum(np.ones(1), "first")
    requested = named_calls_among((0, 1))._requested
    tell = requested.notify

    def interrupt():
        requested.notify = tell
        raise KeyboardInterrupt

    if rank == 1:
        requested.notify = interrupt
    for name in ("interrupted", "next"):
        try:
            collectives.allReduceSum(np.ones(1), name)
        except (KeyboardInterrupt, popdist.PopdistError) as error:
            print(type(error).__name__)
    """

    assert outputs(run(2, body)) == [
        "CollectiveAbortedError\nGroupUnusableError",
        "KeyboardInterrupt\nGroupUnusableError",
    ]


def test_names_that_are_never_used_again_take_no_more_memory() -> None:
    body = """
    from popdist.engine.spec import operations
    from popdist.negotiation.named_calls import named_calls_among
    for i in range(9000):
        collectives.allReduceSum(np.ones(1), f"step {i}")
    negotiator = named_calls_among((0, 1))
    agreement = negotiator._agreement
    tables = agreement._templates, agreement._repeated, operations._NAMES
    print(all(len(table) <= 4096 for table in tables))
    print(negotiator._calls, negotiator._fresh, negotiator._blocked, agreement._pending)
    """

    assert outputs(run(2, body)) == ["True\n{} [] set() {}"] * 2


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u8", "?"])
def test_small_and_large_arrays_are_added_alike_to_the_bit(dtype: str) -> None:
    body = f"""
    values = np.random.default_rng(rank).normal(0, 100, 8)
    values[:3] = np.nan, 1e-40, -0.0
    with np.errstate(all="ignore"):
        small = values.astype({dtype!r})
    large = np.tile(small, 9)
    collectives.allReduceSum(small, "small")
    collectives.allReduceSum(large, "large")
    print(small.tobytes() * 9 == large.tobytes(), small.nbytes <= 64)
    """

    assert outputs(run(5, body)) == ["True True"] * 5


def test_long_and_strange_names_are_told_apart_and_shown_in_short() -> None:
    body = """
    long = "\\u2603" * 200
    print(collectives.allReduceSum(np.ones(1), long + "a").tolist())
    try:
        collectives.allReduceSum(np.ones(1 + rank), long)
    except popdist.MismatchError as error:
        print("named '" + r"\\u2603" * 15 in str(error), len(str(error)) < 500)
    """

    assert outputs(run(2, body)) == ["[2.0]\nTrue True"] * 2


def test_all_threads_of_a_failed_group_get_an_error() -> None:
    body = """
    collectives.barrier("begin")
    if rank == 0:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    failed = []

    def wait(name):
        try:
            collectives.barrier(name)
        except popdist.PopdistError as error:
            failed.append(type(error).__name__)

    threads = [threading.Thread(target=wait, args=[f"{i}"]) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sorted(failed))
    """

    ended = run(2, body)

    assert [one.code for one in ended] == [-9, 0]
    assert ended[1].out.count("Error") == 3
    assert "PeerLostError" in ended[1].out


# Sends SIGINT once the main thread waits for a call, which it has requested by then.
INTERRUPT = """
from popdist.engine.handle import Handle

def interrupt():
    frame = None
    while frame is None:
        time.sleep(0.1)
        frame = sys._current_frames()[threading.main_thread().ident].f_back
        while frame is not None and frame.f_code is not Handle.wait.__code__:
            frame = frame.f_back
    os.kill(os.getpid(), signal.SIGINT)

thread = threading.Thread(target=interrupt)
"""


def test_ctrl_c_ends_a_call_that_waits_for_its_turn() -> None:
    body = """
collectives.barrier("begin")
if rank == 0:
    try:
        collectives.barrier("never")
    except popdist.PopdistError as error:
        print(type(error).__name__)
else:
    thread.start()
    try:
        collectives.barrier("other")
    except KeyboardInterrupt:
        print("interrupted")
"""

    said = outputs(run(2, INTERRUPT + body))

    assert said == ["CollectiveAbortedError", "interrupted"]


# Out of order in the one thread that makes calls, on two instances.
CROSSED = """
names = ["first", "second"]
if rank:
    names.reverse()
try:
    for name in names:
        collectives.allReduceSum(np.ones(1), name)
except popdist.MismatchError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "earlier",
    [
        pytest.param(
            "popdist.replica_group().all_reduce(np.ones((1, 4)), async_op=True).wait()",
            id="of-the-engine",
        ),
        pytest.param(
            "collectives.allReduceSum(np.ones(1), 'both', async_op=True).wait()",
            id="of-named-calls",
        ),
        pytest.param(
            "threading.Thread(target=time.sleep, args=[30], daemon=True).start()",
            id="without-calls",
        ),
    ],
)
def test_threads_that_make_no_calls_do_not_keep_an_error_back(earlier: str) -> None:
    words = out_of_order("'first'", "'second'")
    assert said(run(2, f"{earlier}\n{CROSSED}", STALL)) == [words] * 2


@pytest.mark.parametrize("late", ["main", "other"])
def test_a_thread_that_calls_are_expected_of_is_waited_for_longer_than_a_stall(
    late: str,
) -> None:
    body = f"""
    begun = threading.Event()

    def work():
        collectives.barrier("begin")
        begun.set()
        time.sleep(2)
        collectives.barrier("first")

    def wait():
        # Nobody waits for a thread that has made no call.
        begun.wait()
        collectives.barrier("second")

    if rank == 0:
        for name in ("begin", "first", "second"):
            collectives.barrier(name)
    else:
        main, other = (work, wait) if {late!r} == "main" else (wait, work)
        thread = threading.Thread(target=other)
        thread.start()
        main()
        thread.join()
    print("done")
    """

    assert said(run(2, body, STALL)) == ["done"] * 2


def test_threads_that_python_does_not_list_may_still_make_the_awaited_call() -> None:
    body = """
    import _thread

    def late():
        time.sleep(0.5)
        collectives.barrier("first")
        done.release()

    done = _thread.allocate_lock()
    done.acquire()
    if rank == 0:
        collectives.barrier("first")
        collectives.barrier("second")
    else:
        _thread.start_new_thread(late, ())
        collectives.barrier("second")
        done.acquire()
    print("done")
    """

    assert outputs(run(2, body)) == ["done"] * 2


def test_ctrl_c_in_the_wait_for_a_handle_ends_the_call_for_all() -> None:
    body = """
collectives.barrier("begin")
try:
    if rank == 0:
        collectives.barrier("never")
    else:
        handle = collectives.allReduceSum(np.ones(1), "other", async_op=True)
        thread.start()
        handle.wait()
except popdist.CollectiveAbortedError as error:
    print(error)
except KeyboardInterrupt:
    print("interrupted")
"""

    words, interrupted = outputs(run(2, INTERRUPT + body))

    # Between two exchanges of requests, or in one.
    assert words in (
        "Instance 1 was interrupted in 'other', which ended it for all.",
        "Instance 1 was interrupted in its next named call, which ended it for all.",
    )
    assert interrupted == "interrupted"
