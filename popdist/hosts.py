"""The hosts of the job's instances, as the launcher or the links tell them."""

from popdist.session import STATE


def host_numbers() -> tuple[int, ...]:
    """Return the number of the host of each instance of the job.

    Where the launcher does not tell, links have: they must be started then.
    """
    place = STATE.job.place
    if place.on_one_host:
        return (0,) * place.size
    # Not above: without collectives, the engine is not needed.
    from popdist.engine.hosts.links_thread import started

    return STATE.job_hosts().hosts or started().hosts


def start_links(members: tuple[int, ...]) -> None:
    """Link the hosts, if there are several; blocks until all instances do so.

    A group of some instances starts links only where they are on several hosts, and
    would wait for the others.

    Args:
        members: The instances to name in errors, including this one.
    """
    if STATE.job.place.on_one_host:
        return
    # Not above, as in host_numbers().
    from popdist.engine.hosts.meeting import MeetOverHosts

    MeetOverHosts(STATE.meeting_of("", members), STATE.job_hosts()).world()
