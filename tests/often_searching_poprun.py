"""poprun, which waits for hosts for a short time.

It looks for more hosts every second instead of every 10 seconds, and starts a job again
4 instead of 16 seconds after the loss of a host whose instances may run on.
"""

from functools import partial

from poprun.__main__ import main
from poprun.reach.host_search import SearchQuestion
from poprun.run import elastic_hosts, restarts

if __name__ == "__main__":
    often = partial(SearchQuestion, interval_s=1.0)
    elastic_hosts.SearchQuestion = often  # type: ignore[misc, assignment]
    restarts.CUT_OFF_S = 4.0
    main()
