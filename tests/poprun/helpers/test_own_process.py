from subreaper import run_as_subreaper


def test_a_subreaper_has_children_until_its_orphans_have_ended() -> None:
    assert (
        run_as_subreaper("""
missed = 0
for _ in range(100):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        if not os.fork():
            os.close(write)
            os.setsid()
            os.read(read, 1)
            os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
    missed += not processes.has_children()
    os.close(write)
    while processes.has_children(): processes.reap()
print(missed)
""")
        == "0\n"
    )


def test_a_process_gets_the_signal_when_its_parent_ends() -> None:
    assert run_as_subreaper("""
read, write = os.pipe()
parent = os.fork()
if not parent:
    middle = os.getpid()
    if not os.fork():
        os.write(write, b"%d" % own_process.die_with_parent(signal.SIGTERM, middle))
        signal.pause()
    signal.pause()
print(os.read(read, 1))
os.kill(parent, 9)
ended = {}
while len(ended) < 2: ended.update(processes.reap()); time.sleep(0.01)
print(sorted(ended.values()))
""").splitlines() == ["b'1'", "[9, 15]"]


def test_a_process_learns_that_its_parent_has_ended_already() -> None:
    assert run_as_subreaper("""
print(own_process.die_with_parent(signal.SIGTERM, 1 << 22))
""").splitlines() == ["False"]


def test_signals_become_bytes_that_can_be_waited_for() -> None:
    assert run_as_subreaper("""
import select
wake = own_process.wake_up_on(signal.SIGTERM, signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGUSR1)
select.select([wake], [], [])
first = os.read(wake, 9)
os.kill(os.getpid(), signal.SIGTERM)
select.select([wake], [], [])
print(first, os.read(wake, 9), os.get_blocking(wake), os.get_inheritable(wake))
""").splitlines() == ["b'\\n' b'\\x0f' False False"]


def test_a_signal_that_the_caller_has_blocked_still_wakes_up() -> None:
    assert run_as_subreaper("""
import select
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
wake = own_process.wake_up_on(signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
print(bool(select.select([wake], [], [], 200)[0]))
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
""").splitlines() == ["True", "{<Signals.SIGUSR2: 12>}"]


def test_a_program_starts_with_the_signals_of_a_fresh_process() -> None:
    script = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
own_process.default_signals(ignored=%s)
status = open("/proc/self/status").read()
ignored = [line for line in status.splitlines() if line.startswith("SigIgn")]
# Two real-time signals are the C library's own: make, for one, has them ignored.
mask = int(ignored[0].split()[1], 16) & ~(0b11 << 31)
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), mask)
"""

    assert run_as_subreaper(script % "[]") == "set() 0\n"
    assert run_as_subreaper(script % "[1, 2]") == "set() 3\n"


def test_memory_is_bound_where_the_kernel_allows_it() -> None:
    # Containers often forbid the call; then it is refused, and nothing breaks.
    assert run_as_subreaper("""
allowed = own_process.bind_memory([0])
policy = open("/proc/self/numa_maps").read() if allowed else "bind:0"
print("bind:0" in policy, own_process.bind_memory([1023]))
""").splitlines() == ["True False"]
