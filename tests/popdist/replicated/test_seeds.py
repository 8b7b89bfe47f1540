from popdist.replicated.seeds import seed_of


def test_seeds_stay_what_they_are() -> None:
    # A saved model goes on with them.
    seeds = [seed_of(seed, 3, 5) for seed in (0, 42, -1, 2**64 + 42)]

    assert seeds == [931175897, 653448659, 106778988, 653448659]


def test_each_replica_has_another_seed_in_each_iteration() -> None:
    seeds = {seed_of(42, replica, it) for replica in range(20) for it in range(20)}

    assert len(seeds) == 400
    assert all(0 <= seed < 1 << 32 for seed in seeds)
