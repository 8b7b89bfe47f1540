"""Processes that are in many groups at once."""

import os
import resource
from typing import Any

import numpy as np

from tests.popdist.engine.members import Me, results


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_hundreds_of_groups_fit_under_a_limit_of_1024_files() -> None:
    def member(me: Me) -> Any:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
        name, groups = me.name, []
        for number in range(300):
            me.name = f"{name}-{number}"
            groups.append(me.join())
        shared = [group.empty(10) for group in groups]
        for number, array in enumerate(shared):
            array[...] = number
        return [
            float(group.all_reduce(array, out=array)[0])
            for group, array in zip(groups, shared, strict=True)
        ]

    assert results(3, member) == [[3.0 * number for number in range(300)]] * 3


def test_a_further_group_of_the_same_processes_takes_one_file() -> None:
    def member(me: Me) -> Any:
        name, groups, files = me.name, [], []
        for number in range(5):
            me.name = f"{name}-{number}"
            groups.append(me.join())
            groups[-1].empty(10)
            groups[-1].barrier()
            files.append(open_files())
        for group in groups:
            group.close()
        return files

    for files in results(6, member):
        assert np.diff(files).tolist() == [1] * 4


def test_the_last_group_of_a_peer_closes_the_files_that_groups_share() -> None:
    def member(me: Me) -> Any:
        before = open_files()
        name, groups = me.name, []
        for number in range(3):
            me.name = f"{name}-{number}"
            groups.append(me.join())
        closed, dropped, last = groups
        groups.clear()
        closed.close()
        del dropped
        # Those that are left see the ends of their peers.
        watched = sorted(pidfd.is_open for pidfd in last.pidfds.values())
        last.barrier()
        last.close()
        return watched, open_files() - before

    assert results(3, member) == [([True, True], 0)] * 3
