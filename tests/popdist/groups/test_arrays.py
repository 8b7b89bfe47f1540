from jobs import environments, outputs, run, run_alone


def test_new_arrays_are_reduced_in_the_arena() -> None:
    body = """
    x = popdist.zeros((100_000,))
    like = popdist.empty_like(x)
    print(x.dtype, x.any(), like.shape, like.dtype, popdist.empty(3, np.int8).dtype)
    like[...] = rank + 1
    group = popdist.instance_group()
    print(group.all_reduce(like, out=x) is x, group.last_algorithm, x.min(), x.max())
    rows = popdist.empty((2, 50_000))
    rows[...] = 1
    group = popdist.replica_group()
    group.all_reduce(popdist.rows(rows), out=rows)
    print(group.last_algorithm, rows.min(), rows.max())
    """

    said = "float32 False (100000,) float32 int8\nTrue arena 3.0 3.0\narena 4.0 4.0"
    assert outputs(run((2, 2), body)) == [said] * 2


def test_memory_that_is_used_again_is_zero_in_an_array_of_zeros() -> None:
    body = """
    x = popdist.empty(100_000)
    x[...] = 7
    del x
    print(popdist.zeros(100_000).any())
    """

    assert outputs(run(2, body)) == ["False"] * 2


def test_without_poprun_arrays_are_made_all_the_same() -> None:
    body = "print(popdist.zeros((2, 2)).tolist(), popdist.empty_like([1, 2]).shape)"

    assert outputs(run_alone(body)) == ["[[0.0, 0.0], [0.0, 0.0]] (2,)"]


def test_instances_on_several_hosts_get_ordinary_arrays() -> None:
    environ = {
        **environments((2, 2))[0],
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    }

    assert outputs(run(1, "print(popdist.zeros(3))", environ)) == ["[0. 0. 0.]"]


def test_within_execute_on_instances_arrays_are_of_the_group_of_those() -> None:
    body = """
    def among_them():
        x = popdist.zeros(100_000)
        group = popdist.instance_group()
        group.all_reduce(x, out=x)
        return group.last_algorithm

    print(popdist.execute_on_instances({1, 2}, among_them))
    """

    assert outputs(run(3, body)) == ["None", "arena", "arena"]
