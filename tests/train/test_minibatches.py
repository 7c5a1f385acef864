import pytest

from partita.train.minibatches import minibatches

GROUPS = [4, 4, 9, 9, 9, 2, 2, 7]


@pytest.mark.parametrize("split", ["groups", "spread"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_sample_once(split: str, count: int) -> None:
    parts = minibatches(GROUPS, count, split, (1, 2, 3))
    assert sorted(s for part in parts for s in part) == list(range(8))
    assert len(parts) == count and all(parts)


def test_groups_stay_whole_and_differ_by_one_group_at_most() -> None:
    parts = minibatches(GROUPS, 2, "groups", (1, 0, 0))
    owners = [{GROUPS[s] for s in part} for part in parts]
    assert not owners[0] & owners[1]
    assert [len(o) for o in owners] == [2, 2]


def test_order_is_a_function_of_the_key_alone() -> None:
    same = [minibatches(GROUPS, 4, "spread", (1, 7, 0)) for _ in range(2)]
    assert same[0] == same[1]
    others = [minibatches(GROUPS, 4, "spread", key) for key in ((1, 7, 1), (1, 8, 0), (2, 7, 0))]
    assert all(other != same[0] for other in others)


def test_fewer_groups_than_minibatches_leave_none_empty() -> None:
    assert sorted(minibatches([1, 1], 3, "groups", (0, 0, 0))) == [[0, 1]]
