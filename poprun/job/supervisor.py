"""Start a job and see it through: the only module that starts one.

It owns the sockets to the guard and the shims, the read ends of the instances'
streams, and the loop that listens to all of them. What is to be done when something
happens is decided in stopping; what is shown is decided by those who listen to the
events.
"""

import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from poprun.errors import LaunchError
from poprun.helpers import processes, protocol
from poprun.helpers.channel import Channel, process_of
from poprun.helpers.job_files import LOCK, make_lock
from poprun.job import stopping
from poprun.job.control_socket import ControlSocket, Hangups
from poprun.job.drain import drain, patience
from poprun.job.events import (
    AcceptFailed,
    AloneInMpi,
    Clean,
    Connected,
    Event,
    Exited,
    GuardLost,
    Interrupted,
    MpirunExited,
    MpirunRefused,
    MpirunStarted,
    OutputClosed,
    Refused,
    Rejected,
    Remains,
    ShimLost,
    StacksShown,
    Started,
    Tick,
)
from poprun.job.finalizing import Finalizing
from poprun.job.guard_client import Guarding
from poprun.job.guard_start import StartedGuard
from poprun.job.stacks import Stacks
from poprun.job.stopping import Course, Phase
from poprun.job.values import Ended, Job
from poprun.stdio.readers import Streams
from poprun.stdio.router import STREAMS, Relay
from poprun.stdio.stdin import Feeder
from poprun.stdio.terminal import is_foreground, wait_until_readable
from poprun.stdio.writer import Sink

IN, OUT = select.POLLIN, select.POLLOUT
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
OTHER_SIGNALS = (signal.SIGTSTP, signal.SIGCHLD, signal.SIGWINCH)
HANDLED_SIGNALS = (*ENDING_SIGNALS, *PASSED_ON, *OTHER_SIGNALS)

# The guard needs this long only where a process hangs in the kernel.
FINISH_S = 35.0
# One that stays stopped (state T) for so long is replaced, and this often looked at.
STOPPED_S = 1.0
LOOK_AT_GUARD_S = 0.1
# One that is killed is replaced; one that cannot live is not replaced for ever.
MOST_GUARDS = 20


class Launch:
    """One job, from its start to its end.

    It starts when this is made; `to_the_end` must be called then, and leaves nothing
    behind.

    Args:
        listen: Is told of each event when it has happened, and must not wait.
    """

    def __init__(
        self,
        job: Job,
        guard: StartedGuard,
        relay: Relay,
        listen: Callable[[Event], None],
    ) -> None:
        now = time.monotonic()
        self._job = job
        self._relay = relay
        self._listen = listen
        self._course = Course(
            num_instances=len(job.specs),
            grace=job.grace,
            keep_going=job.keep_going,
            ends_by=now + job.timeout,
            starts_by=now + job.start_timeout,
        )
        self.ended = Ended(course=self._course)
        self._shims: dict[int, Channel] = {}
        self._hangups = Hangups()
        self._clean: set[int] = set()
        self._feeder = Feeder(job.stdin)
        self._finalizing = Finalizing(len(job.specs))
        self._interpreters: set[Channel] = set()  # that have told of their end
        self._programs: dict[int, int] = {}  # the rank of each, by its pid
        self._streams = Streams(relay)
        shims = self._shims
        self._stacks = Stacks(
            lambda rank, pid: _ask_for_stacks(shims.get(rank), pid),
            relay.tail,
            lambda sentence: relay.say(f"poprun: {sentence}\n"),
        )
        self._finished = False
        # Signals to end the job that came when it was over.
        self._is_over = False
        self._late_signals = 0

        self._wake = processes.wake_up_on(*_signals())
        processes.become_subreaper()
        self._words = guard.words
        self._control = ControlSocket(job.control, len(job.specs))
        self._guarding = Guarding(
            guard,
            mark=job.mark,
            environment=job.mpirun_environment,
            grace=job.grace,
            remove=job.directories,
            watch=job.leftovers,
            descriptor_limits=job.descriptor_limits,
        )
        # Now that the guard knows of them: poprun may be killed at any time.
        for directory in job.directories:
            _make_directory(directory)
        self._make_lock()
        self._guarding.start(job.mpirun)

    def _make_lock(self) -> None:
        """Let each supervisor know, when it ends, whether it is the last."""
        self._lock, self._hold = -1, b""
        directories = [os.fsencode(path) for path in self._job.directories]
        if directories:
            lock = os.path.join(directories[0], LOCK)
            # On a full disk the guard still removes everything.
            with suppress(OSError):
                self._lock = make_lock(directories[0], directories)
                self._hold = protocol.pack(protocol.HOLD, lock)
                self._guarding.hold(lock)

    # --- The life of a job.

    def to_the_end(self) -> Ended:
        """See the job through."""
        while self._course.phase is not Phase.OVER:
            self._turn(self._course.deadline)
        self._finish()
        return self.ended

    def _finish(self) -> None:
        """End whatever is left, read the last words, write all that is unwritten."""
        self._tell(protocol.pack(protocol.RELEASE))
        self._guarding.finish()
        self._await_finish(time.monotonic())
        self.ended.left_behind += self._guarding.end_own_orphans()
        self.write_out()
        self._streams.close()
        self._feeder.close()
        self._control.close()
        self._hangups.close()
        self.ended.course = self._course
        self.ended.mpirun_words = os.pread(self._words, 1 << 20, 0)
        os.close(self._words)
        if self._lock >= 0:
            os.close(self._lock)

    def _await_finish(self, began: float) -> None:
        """Wait until the guard has finished, and do its work if it does not."""
        while not self._finished:
            now = time.monotonic()
            if now >= began + FINISH_S:
                self._guarding.kill()
                self._guarding.do_without()
                return
            # A debugger may hold it, or something may stop it again and again.
            if self._guarding.keep_running() and now >= began + STOPPED_S:
                self._guarding.kill()
            self._turn(now + LOOK_AT_GUARD_S)

    def write_out(self) -> None:
        """Write what is unwritten when the job is over, while somebody reads it."""
        self._is_over = True
        self._relay.hide_status(forever=True)
        drain(
            self._relay,
            self._streams,
            self._wake,
            lambda: self._on_signals(self._wake, IN),
            self._patience,
        )

    def _patience(self) -> float:
        signals = sum(isinstance(event, Interrupted) for event in self.ended.events)
        return patience(
            self._course.cause,
            failed=any(isinstance(e, Exited) and e.status for e in self.ended.events),
            signals=signals + self._late_signals,
        )

    def _turn(self, deadline: float) -> None:
        """Wait for something to happen, and deal with all that has."""
        calls = {}
        poll = select.poll()
        for descriptor, mask, call in self._interests():
            poll.register(descriptor, mask)
            calls[descriptor] = call
        now = time.monotonic()
        due = min(deadline, self._relay.deadline(), self._finalizing.deadline())
        due = min(due, self._control.deadline(now), self._stacks.deadline())
        ready = poll.poll(processes.poll_timeout(due - now))
        if ready and ready[0][0] == self._wake:
            self._on_signals(*ready.pop(0))
        if any(mask & select.POLLHUP for _, mask in ready):
            self._on_hangups()
        for descriptor, mask in ready:
            calls[descriptor](descriptor, mask)
        for _ in range(self._control.expire(time.monotonic())):
            self._emit(Rejected("it said nothing"))
        self._relay.tick(time.monotonic())
        if self._relay.closed:
            self._emit(OutputClosed())
        self._show_stacks()
        self._emit(Tick())
        for event in self._finalizing.due(time.monotonic()):
            self._emit(event)
        self._streams.take_breath()

    def _interests(self) -> Iterator[tuple[int, int, Callable[[int, int], None]]]:
        """Yield what to wait for, and whom to call when it comes."""
        yield self._wake, IN, self._on_signals
        if self._control.is_listening(time.monotonic()):
            yield self._control.fileno(), IN, self._on_call
        # The guard last: poll returns what is ready in this order, and mpirun's exit
        # usually follows from that of an instance or a shim. Where it is the other way
        # round, mpirun was killed, and its status says so.
        links = (*self._control.unknown, *self._interpreters, *self._shims.values())
        for link in (*links, self._guarding.channel):
            yield (
                link.fileno(),
                IN | (OUT if link.has_unsent else 0),
                self._on_link(link),
            )
        for descriptor in self._streams.readers():
            yield descriptor, IN, lambda d, __: self._streams.read(d)
        for sink in self._relay.sinks:
            if sink.queued:
                yield sink.fileno(), OUT, self._on_writable(sink)
        for descriptor in self._feeder.readers():
            yield descriptor, IN, lambda _, __: self._read_stdin()
        for descriptor in self._feeder.writers():
            yield descriptor, OUT, lambda d, __: self._feeder.write(d)

    def _on_writable(self, sink: Sink) -> Callable[[int, int], None]:
        return lambda _, __: sink.flush()

    def _emit(self, event: Event) -> None:
        self._course, actions = stopping.decide(self._course, event, time.monotonic())
        if not isinstance(event, Tick | OutputClosed):
            self.ended.events.append(event)
            self._listen(event)
        if isinstance(event, Exited | Refused | ShimLost):
            self._note_end(event.rank)
        for action in actions:
            self._act(action)

    def _note_end(self, rank: int) -> None:
        """Tell the other instances, which may be waiting for this one to join them."""
        # On a full disk, or without the directory, they learn of it by their timeout.
        with suppress(OSError), open(self._job.ended_file, "ab") as file:
            file.write(b"%d\n" % rank)

    def _act(self, action: stopping.Action) -> None:
        match action:
            case stopping.SignalInstances(number):
                self._tell(protocol.pack(protocol.SIGNAL, number))
            case stopping.KillInstances():
                self._tell(protocol.pack(protocol.KILL))
            case stopping.ReleaseShims():
                self._tell(protocol.pack(protocol.RELEASE))
            case stopping.SignalMpirun(number) if self.ended.mpirun_pid:
                self._guarding.signal_mpirun(self.ended.mpirun_pid, number)

            case stopping.ShowStacks():
                self._stacks.start(sorted(self._shims), time.monotonic())

    def _show_stacks(self) -> None:
        if self._course.phase is Phase.TRACING:
            self._stacks.tick(time.monotonic())
            if self._stacks.over:
                self._emit(StacksShown())
        elif not self._stacks.over:
            self._stacks.stop()

    def _tell(self, message: bytes) -> None:
        for shim in self._shims.values():
            shim.send(message)

    # --- Signals to poprun.

    def _on_signals(self, wake: int, _: int) -> None:
        for number in os.read(wake, 4096):
            if number in ENDING_SIGNALS and self._is_over:
                self._late_signals += 1
            elif number in ENDING_SIGNALS:
                self._emit(Interrupted(number))
            elif number in PASSED_ON:
                self._tell(protocol.pack(protocol.SIGNAL, number))
            elif number == signal.SIGTSTP:
                self._pause()
            elif number == signal.SIGWINCH:
                self._resize()
        self._reap()

    def _reap(self) -> None:
        # mpirun is poprun's own child only when a guard has died.
        for pid, status in processes.reap():
            if pid == self.ended.mpirun_pid:
                self._on_mpirun_exit(status)
        # SIGCHLD comes when a child is stopped, too.
        self._guarding.keep_running()

    def _pause(self, number: int = signal.SIGSTOP) -> None:
        self._relay.hide_status()
        # SIGSTOP, because what leads a session of its own never sees SIGTSTP.
        self._tell(protocol.pack(protocol.SIGNAL, signal.SIGSTOP))
        os.kill(os.getpid(), number)
        if self._job.stdin.is_own:
            # Continued by "bg", it may not let an instance read what the shell reads.
            wait_until_readable(0)
        self._tell(protocol.pack(protocol.SIGNAL, signal.SIGCONT))

    def _resize(self) -> None:
        """Give the instances' terminals the size that poprun's has now."""
        self._relay.resize()
        terminals = self._job.terminals
        if terminals.stdout or terminals.stderr:
            self._streams.resize(terminals.size())
            self._tell(protocol.pack(protocol.SIGNAL, signal.SIGWINCH))

    def _read_stdin(self) -> None:
        if os.isatty(0) and not is_foreground(0):
            self._pause(signal.SIGTTIN)
        self._feeder.read()

    # --- The guard, and mpirun behind it.

    def _on_link(self, link: Channel) -> Callable[[int, int], None]:
        def call(_: int, mask: int) -> None:
            if link.fileno() < 0:  # closed since poll returned
                return
            if mask & OUT:
                link.flush()
            if mask & ~OUT:
                self._on_messages(link, link.receive())

        return call

    def _on_messages(
        self, link: Channel, messages: list[tuple[int, list[bytes]]] | None
    ) -> None:
        if link is self._guarding.channel:
            if messages is None:
                self._on_guard_lost()
            for kind, fields in messages or ():
                if not protocol.is_report(kind, fields):
                    os.kill(self._guarding.pid, signal.SIGKILL)
                    self._on_guard_lost()
                    return
                self._on_guard(kind, fields)
        elif link in self._control.unknown:
            self._on_hello(link, messages)
        elif link in self._interpreters:
            if messages is None:
                self._interpreters.discard(link)
                self._finalizing.forget(link)
                link.close()
        else:
            rank = next(r for r, shim in self._shims.items() if shim is link)
            for kind, fields in messages or ():
                twice = kind == protocol.STARTED and rank in self._course.started
                if twice or not protocol.is_report(kind, fields):
                    self._emit(Rejected(f"a message of kind {kind} made no sense"))
                    messages = None
                    break
                self._on_shim(rank, link, kind, fields)
            if messages is None:
                self._on_shim_lost(rank)

    def _on_guard(self, kind: int, fields: list[bytes]) -> None:
        if kind == protocol.FOUND:
            self._guarding.found(fields[0])
            return
        if kind == protocol.REMAINS:
            self._on_remains(fields)
            return
        if kind == protocol.MPIRUN_STARTED:
            self._on_mpirun_start(int(fields[0]), int(fields[1]))
        elif kind == protocol.MPIRUN_REFUSED:
            self._emit(MpirunRefused(int(fields[0]), os.fsdecode(fields[1])))
            self._on_mpirun_exit(127 << 8)
        elif kind == protocol.MPIRUN_EXITED:
            self._on_mpirun_exit(int(fields[0]))
        elif kind == protocol.FINISHED:
            self._finished = True
            self.ended.left_behind += int(fields[0])

    def _on_remains(self, fields: list[bytes]) -> None:
        pid, user = (int(field) for field in fields[:2])
        known = {e.pid for e in self.ended.events if isinstance(e, Remains)}
        if pid not in known:
            command = fields[2].decode(errors="backslashreplace")
            self._emit(Remains(pid, user, command))

    def _on_mpirun_exit(self, status: int) -> None:
        self.ended.mpirun_status = status
        self._emit(MpirunExited(status))

    def _on_guard_lost(self) -> None:
        if self._finished:
            return
        if self._guarding.replaced == MOST_GUARDS:
            self._guarding.do_without()
            raise LaunchError(
                f"poprun's guard died {MOST_GUARDS + 1} times in one job. "
                "The job was ended, because nothing else ends it should poprun die."
            )
        try:
            self._guarding.replace()
        except LaunchError:
            self._guarding.do_without()
            raise
        self._emit(GuardLost())
        if not self.ended.mpirun_pid and not self._course.mpirun_ended:
            self._find_mpirun()
        self._reap()
        if self._course.phase is Phase.OVER:
            self._guarding.finish()

    def _find_mpirun(self) -> None:
        """Go on where a guard died before it could say which process mpirun is."""
        mpirun = self._guarding.orphaned_mpirun()
        if mpirun is not None:
            self._on_mpirun_start(mpirun.pid, mpirun.start)
        elif self._course.phase is Phase.RUNNING:
            self._guarding.start(self._job.mpirun)
        else:
            self._on_mpirun_exit(signal.SIGKILL)

    def _on_mpirun_start(self, pid: int, start: int) -> None:
        self.ended.mpirun_pid = pid
        self._guarding.know(pid, start)
        self._emit(MpirunStarted(pid))

    # --- The shims.

    def _on_call(self, _: int, __: int) -> None:
        try:
            for why in self._control.accept(time.monotonic()):
                self._emit(Rejected(why))
        except OSError as error:
            self._emit(AcceptFailed(error.errno or 0))

    def _on_hello(
        self, link: Channel, messages: list[tuple[int, list[bytes]]] | None
    ) -> None:
        if messages == []:
            return
        del self._control.unknown[link]
        if messages and messages[0][0] == protocol.FINALIZING:
            self._on_finalizing(link, messages[0][1])
            return
        if messages and messages[0][0] == protocol.ALONE_IN_MPI:
            self._on_alone(link, messages[0][1])
            return
        rank = self._rank_of(messages)
        if rank is None:
            link.close()
            self._emit(Rejected("it did not prove that it belongs to the job"))
            return
        assert messages
        self._shims[rank] = link
        self._hangups.watch(link.fileno())
        self._guarding.know(int(messages[0][1][4]), int(messages[0][1][5]))
        self._emit(Connected(rank))
        if self._course.phase is Phase.RUNNING:
            self._send_spec(rank, link)
        else:
            link.send(protocol.pack(protocol.RELEASE))
            self._emit(Clean(rank, 0))

    def _send_spec(self, rank: int, link: Channel) -> None:
        try:
            descriptor = self._feeder.descriptor_for(rank)
        except OSError as error:
            link.send(protocol.pack(protocol.RELEASE))
            self._clean.add(rank)
            self._emit(Refused(rank, error.errno or 0, "", "making a pipe for stdin"))
            return
        sent = () if descriptor is None else (descriptor,)
        if self._hold:
            link.send(self._hold)
        link.send(self._job.specs[rank], sent)
        if descriptor is not None:
            os.close(descriptor)

    def _rank_of(self, messages: list[tuple[int, list[bytes]]] | None) -> int | None:
        if not messages or messages[0][0] != protocol.HELLO:
            return None
        if not protocol.is_report(*messages[0]):
            return None
        version, key, rank = messages[0][1][:3]
        known = int(rank) in self._course.connected
        known = known or int(rank) >= len(self._job.specs)
        ours = int(version) == protocol.VERSION and key == self._control.key
        return int(rank) if ours and not known else None

    def _on_alone(self, link: Channel, fields: list[bytes]) -> None:
        """Warn of an instance that imports mpi4py where there is no MPI."""
        known = protocol.is_report(protocol.ALONE_IN_MPI, fields)
        ours = known and fields[:2] == [b"%d" % protocol.VERSION, self._control.key]
        link.close()
        # A program below an instance may be without the variables of an MPI for good.
        if ours and not self._job.has_mpi and len(self._job.specs) > 1:
            self._emit(AloneInMpi(int(fields[2])))

    def _on_finalizing(self, link: Channel, fields: list[bytes]) -> None:
        """Note what the interpreter of an instance has told of its end."""
        known = protocol.is_report(protocol.FINALIZING, fields)
        if not known or fields[:2] != [b"%d" % protocol.VERSION, self._control.key]:
            link.close()
            return
        self._interpreters.add(link)
        # What ends once the job is being stopped has not ended by itself.
        if self._course.phase is Phase.RUNNING:
            self._finalizing.tell(
                link,
                rank=self._programs.get(pid := process_of(link.sock), int(fields[2])),
                status=int(fields[3]) or None,
                own=pid in self._programs,
                now=time.monotonic(),
            )

    def _on_shim(
        self, rank: int, link: Channel, kind: int, fields: list[bytes]
    ) -> None:
        streams = STREAMS[:1] if self._job.merge_stderr else STREAMS
        if kind == protocol.STARTED and len(link.descriptors) < len(streams):
            # The kernel has dropped what this process had no number left for.
            link.send(protocol.pack(protocol.KILL))
            self._clean.add(rank)
            self._emit(Refused(rank, errno.EMFILE, "", "receiving stdout and stderr"))
        elif kind == protocol.STARTED:
            for stream in streams:
                self._streams.open(link.descriptors.pop(0), rank, stream)
            self._guarding.know(int(fields[0]), int(fields[1]))
            self._programs[int(fields[0])] = rank
            cpus = tuple(int(cpu) for cpu in fields[2].split(b","))
            is_bound = fields[3] == b"1"
            self._emit(Started(rank, int(fields[0]), cpus, memory_is_bound=is_bound))
        elif kind == protocol.REFUSED:
            self._clean.add(rank)
            about, call = map(os.fsdecode, fields[1:])
            self._emit(Refused(rank, int(fields[0]), about, call))
        elif kind == protocol.EXITED:
            self._finalizing.end(rank)
            status, at, user, system, peak = (int(field) for field in fields[:5])
            self._emit(
                Exited(
                    rank=rank,
                    status=status,
                    at_ns=at,
                    user_s=user / 1e6,
                    system_s=system / 1e6,
                    peak_kib=peak,
                    by_itself=fields[5] == protocol.BY_ITSELF,
                )
            )
        elif kind == protocol.REMAINS:
            self._on_remains(fields)
        elif kind == protocol.STACKS:
            pids = [int(pid) for pid in fields[0].split(b",") if pid != b"0"]
            self._stacks.answer(rank, pids, time.monotonic())
        elif kind == protocol.CLEAN:
            self._clean.add(rank)
            self._emit(Clean(rank, int(fields[0])))

    def _on_hangups(self) -> None:
        """Note which shims have gone, in the order in which they went.

        When one is killed, hydra kills the others before poprun may come to look.
        """
        links = {shim.fileno(): shim for shim in self._shims.values()}
        for descriptor in self._hangups.come():
            link = links.get(descriptor)
            while link is not None and link.fileno() >= 0:
                self._on_messages(link, link.receive())

    def _on_shim_lost(self, rank: int) -> None:
        self._shims.pop(rank).close()
        self._finalizing.end(rank)
        if rank not in self._clean and self._course.phase < Phase.LEAVING:
            self._clean.add(rank)
            self._emit(ShimLost(rank))


def _make_directory(path: str) -> None:
    try:
        os.mkdir(path, mode=0o700)
    except OSError as error:
        raise LaunchError(
            f"The job's directory {path} cannot be made: {error.strerror}. Set TMPDIR "
            "to a directory with room for files."
        ) from None


def _ask_for_stacks(shim: Channel | None, pid: int) -> None:
    if shim is not None:
        shim.send(protocol.pack(protocol.SHOW_STACKS, pid))


def block_signals() -> None:
    """Block what poprun handles, for the rest of this process's life.

    Python restores the default actions at its end, and a signal that came then would
    replace the exit code.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)


def _signals() -> list[int]:
    """Return what poprun handles: not what the caller has ignored."""
    ignored = processes.ignored_signals()
    return [number for number in HANDLED_SIGNALS if number not in ignored]
