"""How long the calls of a member may wait for members that do not make them."""

from math import inf
from time import monotonic

from popdist.engine.meet.deadlines import report
from popdist.errors import CollectiveTimeoutError
from popdist.negotiation.agreement import Agreement
from popdist.negotiation.calls import Call


class StallWatch:
    """Reports calls that wait for long, and tells when they have waited too long."""

    def __init__(
        self,
        agreement: Agreement,
        member: int,
        timeout: float,
        stall: float,
        deadlock: float,
    ) -> None:
        """Begin to watch the calls of a member; see Negotiator for the times."""
        self._agreement = agreement
        self._member = member
        self._timeout, self._stall, self._deadlock = timeout, stall, deadlock
        # When a call was last reported, and since when all members have waited for
        # each other.
        self._reported = 0.0
        self._deadlocked_since: float | None = None

    def check_age(self, oldest: Call | None) -> None:
        """Name the members that have not made this one's oldest call, if it is old.

        Raises:
            CollectiveTimeoutError: It has become too old.
        """
        age = 0.0 if oldest is None else monotonic() - oldest.begun
        if oldest is None or age < min(self._stall, self._timeout):
            return
        message = self._agreement.describe_stall(
            self._member, oldest.request, oldest.name, age
        )
        if age >= self._timeout:
            raise CollectiveTimeoutError(message[0].upper() + message[1:])
        # In a deadlock there will be an error, which says more.
        due = self._reported + self._stall
        if self._deadlocked_since is None and monotonic() >= due:
            self._reported = monotonic()
            report(f"{self._agreement.program}: {message}")

    def check_deadlock(self) -> str | None:
        """Return the error if all members have waited for each other for too long."""
        if not self._agreement.is_deadlocked or self._deadlock == inf:
            self._deadlocked_since = None
            return None
        self._deadlocked_since = self._deadlocked_since or monotonic()
        if monotonic() - self._deadlocked_since < self._deadlock:
            return None
        return self._agreement.describe_deadlock(self._deadlock)

    def clear_deadlock(self) -> None:
        """Begin anew to count how long members wait: a call is carried out."""
        self._deadlocked_since = None
