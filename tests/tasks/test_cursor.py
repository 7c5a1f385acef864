from dataclasses import dataclass

import pytest

from partita.tasks.cursor import Cursor, epoch_order


@dataclass(frozen=True)
class Item:
    uid: str


ITEMS = [Item(str(i)) for i in range(10)]


def drawn(cursor, n):
    return [cursor.next().uid for _ in range(n)]


def test_every_epoch_has_every_item_once_in_an_order_of_its_own():
    cursor = Cursor(ITEMS, seed=3, shuffle=True)
    first, second = drawn(cursor, 10), drawn(cursor, 10)
    assert sorted(first) == sorted(second) == sorted(item.uid for item in ITEMS)
    assert first != second
    assert first == drawn(Cursor(ITEMS, seed=3, shuffle=True), 10)
    assert first != drawn(Cursor(ITEMS, seed=4, shuffle=True), 10)


def test_the_order_is_fixed_for_good():
    # Philox is specified; a change here would change every resumed run.
    assert epoch_order(6, 0, 0).tolist() == [0, 2, 1, 5, 4, 3]
    assert epoch_order(6, 0, 1).tolist() == [5, 3, 2, 4, 1, 0]
    assert epoch_order(6, -1, 0).tolist() == epoch_order(6, 2**64 - 1, 0).tolist()


def test_without_shuffling_the_rows_keep_their_order():
    assert drawn(Cursor(ITEMS[:3], seed=1, shuffle=False), 7) == ["0", "1", "2", "0", "1", "2", "0"]


@pytest.mark.parametrize("taken", [0, 4, 10, 17, 20])
def test_a_restored_cursor_continues_where_it_was(taken):
    cursor = Cursor(ITEMS, seed=3, shuffle=True)
    drawn(cursor, taken)
    other = Cursor(ITEMS, seed=3, shuffle=True)
    other.load_state_dict(cursor.state_dict())
    assert drawn(other, 25) == drawn(cursor, 25)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Cursor(ITEMS[:9], seed=3, shuffle=True), "items=10, this run has items=9"),
        (Cursor([*ITEMS[:9], Item("x")], seed=3, shuffle=True), "fingerprint="),
        (Cursor(ITEMS, seed=4, shuffle=True), "seed=3, this run has seed=4"),
        (Cursor(ITEMS, seed=3, shuffle=False), "shuffle=True, this run has shuffle=False"),
    ],
)
def test_a_place_in_other_data_is_refused(other, words):
    with pytest.raises(ValueError, match=words):
        other.load_state_dict(Cursor(ITEMS, seed=3, shuffle=True).state_dict())


def test_there_must_be_something_to_go_through():
    with pytest.raises(ValueError, match="no items"):
        Cursor([], seed=1, shuffle=True)
