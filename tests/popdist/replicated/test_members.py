from jobs import outputs, run

from popdist.replicated.members import Members


def test_one_instance_alone_needs_no_others() -> None:
    members = Members(replicas=3)

    assert (members.rows, members.separate_rows) == (None, False)
    assert members.any_of([True, False]) == [True, False]


MEET = """
from popdist.replicated.members import Members
members = Members.meet("test", popdist.getNumLocalReplicas(), {"steps": 4})
print(members.first_replica, members.replicas, members.separate_rows)
print(members.any_of([rank == 1, False, rank == 0]), members.any_of([]))
"""


def test_members_of_equal_nodes_exchange_a_row_for_each_instance() -> None:
    agreed = "[True, False, True] []"

    assert outputs(run([4, 4, 4], MEET)) == [
        f"0 12 False\n{agreed}",
        f"4 12 False\n{agreed}",
        f"8 12 False\n{agreed}",
    ]


def test_members_of_other_numbers_exchange_a_row_for_each_replica() -> None:
    agreed = "[True, False, True] []"

    assert outputs(run([3, 5], MEET)) == [
        f"0 8 True\n{agreed}",
        f"3 8 True\n{agreed}",
    ]


def test_settings_that_differ_are_an_error_on_all_instances() -> None:
    body = """
    from popdist.replicated.members import Members
    try:
        Members.meet("test", 1, {"steps": 4, "the mean": rank == 2})
    except popdist.MismatchError as error:
        print(error)
    """

    words = (
        "the mean must be the same on all instances, but is [0, 0, 1], from instance 0 "
        "to 2."
    )
    assert outputs(run(3, body)) == [words] * 3
