"""How the output of a job is marked: settings and a plan -> Routes."""

import pytest
from plans import FACTS, make_request, planned

from poprun.host_specs import HostSpec
from poprun.job.output_routes import routes
from poprun.mpirun.values import MpirunArguments
from poprun.options import grammar
from poprun.options.settings import resolve_settings
from poprun.plan.topology import Topology

HOSTS = ("h0", "node-1.example.org")


def marked(*words: str, hosts: tuple[str, ...] = HOSTS, tag: bool = False) -> bytes:
    """Return a line of instance 1 as the console gets it."""
    request = make_request(
        Topology(num_instances=2, num_replicas=2, num_hosts=len(hosts)),
        [HostSpec(name=name) for name in hosts],
        [FACTS] * len(hosts),
        arguments=MpirunArguments(tag_output=tag),
    )
    settings = resolve_settings(grammar.parse(words).options, {})
    mark = routes(planned(request), settings, {}).mark_on_console(1, "stdout")
    assert mark is not None
    return mark.apply(b"line\n", continues=False)


@pytest.mark.parametrize("hosts", [HOSTS[:1], HOSTS], ids=["one", "several"])
def test_tags_of_mpirun_and_poprun_s_form_of_them_are_mpirun_s_on_any_hosts(
    hosts: tuple[str, ...],
) -> None:
    assert marked(hosts=hosts, tag=True) == b"[1,1]<stdout>:line\n"
    assert marked("--tag-format=poprun", hosts=hosts) == b"[1,1]<stdout>:line\n"


def test_poprun_s_own_tags_name_the_host_where_there_are_several() -> None:
    assert marked("--tag-format=short") == b"1@node-1| line\n"
    template = "--tag-format={host}/{instance}: "
    assert marked(template) == b"node-1.example.org/1: line\n"
