import pytest

from poprun.mpirun.hydra import Hydra
from poprun.mpirun.no_mpi import LocalLauncher
from poprun.mpirun.openmpi import OpenMpi4, OpenMpi5
from poprun.mpirun.values import Mpi, MpirunFailure, MpirunReport

RULE = "-" * 74 + "\n"

ABORT_5 = f"""\
{RULE}MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
  Proc: [[13772,1],1]
  Errorcode: 42

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
{RULE}{RULE}prterun has exited due to process rank 1 with PID 0 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
{RULE}\0"""
ABORT_4 = f"""\
{RULE}MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
with errorcode 42.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
{RULE}"""
ABORT_5_IN_PART = f"""\
{RULE}prterun has exited due to process rank 12 with PID 0 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
{RULE}"""
ABORT_HYDRA = (
    "Abort(42) on node 1 (rank 1 in comm 0): application called "
    "MPI_Abort(MPI_COMM_WORLD, 42) - process 1\n"
)
LOST_WORDS_4 = (
    "[vm:06983] [[30649,0],0] ORTE_ERROR_LOG: Data unpack would read past end of "
    "buffer in file ../../../orte/util/show_help.c at line 501"
)
NOT_FINALIZED_5 = f"""\
{RULE}prterun has exited due to process rank 1 with PID 6099 on node vm exiting
improperly. There are three reasons this could occur:

1. this process did not call "init" before exiting, but others in the
job did. This can cause a job to hang indefinitely while it waits for
all processes to call "init". By rule, if one process calls "init",
then ALL processes must call "init" prior to termination.

3. this process called "MPI_Abort" or "prte_abort" and the mca
parameter prte_create_session_dirs is set to false.
{RULE}"""
NOT_FINALIZED_4 = f"""\
{RULE}mpirun.openmpi has exited due to process rank 1 with PID 0 on
node vm exiting improperly. There are three reasons this could occur:

1. this process did not call "init" before exiting, but others in
the job did.
{RULE}"""
KILLED_5 = f"""\
{RULE}prterun noticed that process rank 0 with PID 6125 on node vm exited on
signal 9 (Killed).
{RULE}"""
EXITED_5 = f"""\
{RULE}prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-6130@1,10]
   Exit code:    3
{RULE}"""
EXITED_4 = f"""\
{RULE}mpirun.openmpi detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

  Process name: [[28690,1],0]
  Exit code:    126
{RULE}"""
ENDED_4 = f"""\
{RULE}Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{RULE}"""
KILLED_HYDRA = """
=================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 6249 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
"""
EXITED_HYDRA = """
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 6249 RUNNING AT vm
=   EXIT CODE: 3
"""
LOST_DAEMON_5 = f"""\
{RULE}PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-h0-173@0,0] on node h0
  Remote daemon: [prterun-h0-173@0,1] on node h1
{RULE}"""
UNSTARTED_DAEMON_5 = f"""\
{RULE}A daemon failed to report back after being spawned. This could
be due to several factors, including inability to find the
daemon executable, or the executable was unable to find its
required supporting libraries.

  Local host:    h0
  Remote host:   h1
  Daemon exit status: 0
{RULE}"""
SLOTS = """\
There are not enough slots available in the system to satisfy the 5
slots that were requested by the application:
"""
FILLED = "All nodes which are allocated for this job are already filled.\n"
OPTION_5 = "An unrecognized option was included on the mpirun command line:\n"
OPTION_4 = '/usr/bin/mpirun.openmpi: Error: unknown option "--nosuch"\n'
UNSTARTABLE_LOCAL = "The local launcher cannot start /bin/x: Permission denied.\n"
KILLED_LOCAL = "Process 7 returned 137, and the local launcher ends the others.\n"
OPTION_HYDRA = "[mpiexec@vm] match_arg (args.c:166): unrecognized argument foo\n"


def explain(mpi: type[Mpi], text: str, exit_code: int) -> MpirunReport:
    return mpi(path="/opt/bin/mpirun", version="5").explain(text, exit_code)


@pytest.mark.parametrize(
    ("mpi", "text", "exit_code", "failure", "rank", "code"),
    [
        (OpenMpi5, ABORT_5, 42, MpirunFailure.ABORTED, 1, 42),
        (OpenMpi5, ABORT_5_IN_PART, 7, MpirunFailure.ABORTED, 12, 7),
        (OpenMpi4, ABORT_4, 42, MpirunFailure.ABORTED, 1, 42),
        (OpenMpi4, LOST_WORDS_4, 42, MpirunFailure.UNEXPLAINED, None, 42),
        (Hydra, ABORT_HYDRA, 42, MpirunFailure.ABORTED, 1, 42),
        (Hydra, "", 42, MpirunFailure.ABORTED, None, 42),
        (OpenMpi5, NOT_FINALIZED_5, 1, MpirunFailure.NOT_FINALIZED, 1, 1),
        (OpenMpi4, NOT_FINALIZED_4, 1, MpirunFailure.NOT_FINALIZED, 1, 1),
        (OpenMpi5, KILLED_5, 137, MpirunFailure.OTHER, None, 137),
        (OpenMpi4, ENDED_4, 137, MpirunFailure.UNEXPLAINED, None, 137),
        (Hydra, KILLED_HYDRA, 9, MpirunFailure.OTHER, None, 9),
        (OpenMpi5, EXITED_5, 3, MpirunFailure.OTHER, None, 3),
        (OpenMpi4, EXITED_4, 126, MpirunFailure.OTHER, None, 126),
        (Hydra, EXITED_HYDRA, 3, MpirunFailure.OTHER, None, 3),
        (OpenMpi5, LOST_DAEMON_5, 0, MpirunFailure.DAEMON_LOST, None, 0),
        (OpenMpi5, SLOTS, 213, MpirunFailure.OTHER, None, 213),
        (OpenMpi4, FILLED, 1, MpirunFailure.OTHER, None, 1),
        (OpenMpi5, OPTION_5, 213, MpirunFailure.OTHER, None, 213),
        (OpenMpi4, OPTION_4, 1, MpirunFailure.OTHER, None, 1),
        (Hydra, OPTION_HYDRA, 255, MpirunFailure.OTHER, None, 255),
        (Hydra, "what?", 255, MpirunFailure.UNEXPLAINED, None, 255),
        (OpenMpi5, "", 1, MpirunFailure.UNEXPLAINED, None, 1),
        (LocalLauncher, "", 1, MpirunFailure.UNEXPLAINED, None, 1),
        (LocalLauncher, UNSTARTABLE_LOCAL, 127, MpirunFailure.UNEXPLAINED, None, 127),
        (LocalLauncher, KILLED_LOCAL, 137, MpirunFailure.OTHER, None, 137),
        (OpenMpi5, "", 0, MpirunFailure.NONE, None, 0),
        (Hydra, "", 0, MpirunFailure.NONE, None, 0),
        (LocalLauncher, "", 0, MpirunFailure.NONE, None, 0),
    ],
)
def test_the_messages_of_mpirun_explain_what_failed(
    mpi: type[Mpi],
    text: str,
    exit_code: int,
    failure: MpirunFailure,
    rank: int | None,
    code: int,
) -> None:
    verdict = explain(mpi, text, exit_code)

    assert (verdict.failure, verdict.rank, verdict.code) == (failure, rank, code)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("", MpirunFailure.ABORTED),
        (LOST_WORDS_4, MpirunFailure.ABORTED),
        (UNSTARTED_DAEMON_5, MpirunFailure.UNEXPLAINED),
    ],
)
def test_open_mpi_that_ends_with_0_too_early_and_says_why_has_not_seen_mpi_abort(
    text: str, meaning: MpirunFailure
) -> None:
    assert explain(OpenMpi5, text, 0).if_running is meaning


def test_the_error_code_of_mpi_abort_is_the_whole_one() -> None:
    text = ABORT_4.replace("42", "300")

    assert explain(OpenMpi4, text, 44).code == 300


def test_mpich_says_in_an_instances_stderr_who_called_mpi_abort() -> None:
    mpirun = Hydra(path="/opt/bin/mpirun", version="5")
    stderr = f"before\n{ABORT_HYDRA}"
    verdict = MpirunReport(failure=MpirunFailure.ABORTED, code=42)
    other = MpirunReport(failure=MpirunFailure.OTHER, code=9)

    assert mpirun.explain_abort(verdict, [(0, ""), (1, stderr)]) == MpirunReport(
        failure=MpirunFailure.ABORTED,
        rank=1,
        code=42,
        text="Abort(42) on node 1 (rank 1 in comm 0): application called MPI_Abort",
    )
    # Another instance's line is a quotation.
    assert mpirun.explain_abort(verdict, [(0, stderr)]) == verdict
    assert mpirun.explain_abort(verdict, [(1, "MPI_Abort")]) == verdict
    # mpirun has given another reason.
    assert mpirun.explain_abort(other, [(1, stderr)]) == other


def test_the_messages_are_kept_without_what_no_terminal_should_show() -> None:
    verdict = explain(OpenMpi5, "\n\0strange\0 \x1b[31mwords\n\n\0", 1)

    assert verdict == MpirunReport(
        failure=MpirunFailure.UNEXPLAINED, code=1, text="strange [31mwords"
    )


NO_INTERFACE_5 = f"""\
[vm:22055] pmix_ifinit: unable to find network interfaces.
[vm:22055] ptl_tool: problems getting address for index 0 (kernel index -1)
{RULE}You requested support for tool connections, but no available
interfaces were found after applying any include or exclude directives:
{RULE}"""
NO_INTERFACE_4 = f"""\
[vm:22084] opal_ifinit: unable to find network interfaces.
{RULE}No network interfaces were found for out-of-band communications. We require
at least one available network for out-of-band messaging.
{RULE}"""


@pytest.mark.parametrize(
    ("mpi", "text", "code"),
    [(OpenMpi5, NO_INTERFACE_5, 213), (OpenMpi4, NO_INTERFACE_4, 1)],
)
def test_an_open_mpi_without_a_network_says_what_it_needs(
    mpi: type[Mpi], text: str, code: int
) -> None:
    assert explain(mpi, text, code).hint == (
        "Open MPI needs a network interface that is up: see 'ip link', and run 'ip "
        "link set lo up'. --mpirun local needs none."
    )
