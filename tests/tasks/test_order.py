"""In which order prompts are drawn: by weights, by difficulty, and the same after a kill."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.records import Prompt
from partita.tasks.cursor import Cursor, epoch_order
from partita.tasks.files import DataError
from partita.tasks.order import Mixed, in_order
from partita.tasks.rates import PassRates
from partita.tasks.settings import CurriculumConfig, DatasetConfig, MixedSourceConfig, PassRatesConfig
from partita.tasks.split import digest


def prompts(size, source=None, **columns):
    found = []
    for i in range(size):
        row = {name: values[i] for name, values in columns.items()} | ({"mix": source} if source else {})
        found.append(
            Prompt(f"{source}/{i}" if source else str(i), (i,), "", row, ({"role": "user", "content": str(i)},))
        )
    return found


def drawn(source, count):
    return [source.next().uid for _ in range(count)]


def mixed(weights, sizes, seed=3):
    mix = {name: MixedSourceConfig(path=name, weight=weight) for name, weight in weights.items()}
    return in_order([one for name, size in sizes.items() for one in prompts(size, name)], DatasetConfig(mix=mix), seed)


def test_each_source_gives_its_share_and_goes_through_its_rows_epoch_by_epoch():
    found = drawn(mixed({"a": 3.0, "b": 1.0}, {"a": 6, "b": 3}), 24)
    assert [sum(uid.startswith("a") for uid in found[: 4 * n]) for n in range(1, 7)] == [3, 6, 9, 12, 15, 18]
    own = [uid for uid in found if uid.startswith("a")]
    assert sorted(own[:6]) == sorted(own[6:12]) == [f"a/{i}" for i in range(6)] and own[:6] != own[6:12]
    assert len({uid for uid in found if uid.startswith("b")}) == 3
    assert drawn(mixed({"a": 3.0, "b": 1.0}, {"a": 6, "b": 3}), 24) == found
    assert drawn(mixed({"a": 3.0, "b": 1.0}, {"a": 6, "b": 3}, seed=4), 24) != found


def test_sources_of_one_size_have_orders_of_their_own():
    found = drawn(mixed({"a": 1.0, "b": 1.0}, {"a": 40, "b": 40}), 80)
    orders = [[uid[2:] for uid in found if uid[0] == name] for name in "ab"]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])


@settings(max_examples=40)
@given(st.lists(st.sampled_from([0.1, 0.3, 1.0, 2.0, 2.5, 7.0, 100.0]), min_size=1, max_size=6))
def test_no_source_is_ever_a_whole_prompt_off_its_share(weights):
    sources = {str(i): (Cursor(prompts(3), i, True), weight) for i, weight in enumerate(weights)}
    made, whole = Mixed(sources), sum(Fraction(str(weight)) for weight in weights)
    for number in range(1, 60):
        made.next()
        for (name, count), weight in zip(made.drawn.items(), weights, strict=True):
            assert abs(count - number * Fraction(str(weight)) / whole) < 1, (name, number)


@pytest.mark.parametrize("taken", [0, 1, 7, 30])
def test_a_restored_mix_goes_on_to_the_row(taken):
    weights, sizes = {"a": 2.0, "b": 1.5}, {"a": 6, "b": 4}
    whole, other = mixed(weights, sizes), mixed(weights, sizes)
    drawn(whole, taken)
    other.load_state_dict(whole.state_dict())
    assert drawn(other, 30) == drawn(whole, 30)


def test_a_place_in_another_mix_is_refused():
    state = mixed({"a": 2.0, "b": 1.0}, {"a": 6, "b": 4}).state_dict()
    mixed({"a": 4.0, "b": 2.0}, {"a": 6, "b": 4}).load_state_dict(state)  # the same shares
    with pytest.raises(ValueError, match=r"is for shares \{'a': '2/3', 'b': '1/3'\}, this run has \{'a': '1/2'"):
        mixed({"a": 1.0, "b": 1.0}, {"a": 6, "b": 4}).load_state_dict(state)
    with pytest.raises(ValueError, match=r"mix.b: the saved data position is for items=4, this run has items=5"):
        mixed({"a": 2.0, "b": 1.0}, {"a": 6, "b": 5}).load_state_dict(state)
    with pytest.raises(ValueError, match="is for shares None"):
        mixed({"a": 2.0}, {"a": 6}).load_state_dict(Cursor(prompts(6), 3, True).state_dict())
    with pytest.raises(ValueError, match="is for shares="):
        Cursor(prompts(6), 3, True).load_state_dict({**Cursor(prompts(6), 3, True).state_dict(), "shares": {}})
    with pytest.raises(DataError, match=r"mix.b: no prompt is left of it"):
        mixed({"a": 2.0, "b": 1.0}, {"a": 6})


def ordered(some, seed=3, **keys):
    by = keys.pop("by", "level")
    order, epochs = keys.pop("order", "easy_first"), keys.pop("epochs", None)
    return in_order(some, DatasetConfig(curriculum=CurriculumConfig(by, order, epochs), **keys), seed)


def test_a_curriculum_goes_from_easy_to_hard_with_equals_in_a_random_order():
    levels = [3, 1, 2, 1, 2, 1, 1, 1]
    some = prompts(8, level=levels)
    cursor = ordered(some)
    first, second = drawn(cursor, 8), drawn(cursor, 8)
    for epoch in (first, second):
        assert [levels[int(uid)] for uid in epoch] == sorted(levels)
    assert first != second and sorted(first) == sorted(second)
    shuffled = [str(i) for i in epoch_order(8, 3, 0)]
    assert first == sorted(shuffled, key=lambda uid: levels[int(uid)])
    assert drawn(ordered(some, shuffle=False), 8) == ["1", "3", "5", "6", "7", "2", "4", "0"]
    assert drawn(ordered(some, shuffle=False, order="hard_first"), 3) == ["0", "2", "4"]
    cursor = ordered(some, epochs=1)
    assert drawn(cursor, 8) == first and drawn(cursor, 8) == [str(i) for i in epoch_order(8, 3, 1)]


def test_a_difficulty_is_a_number_or_the_last_one_of_a_text():
    assert drawn(ordered(prompts(3, level=["Level 10", "Level 9", "Level -1"]), shuffle=False), 3) == ["2", "1", "0"]
    some = prompts(2, extra=[{"level": 0.5}, {"level": "0.25"}])
    assert drawn(ordered(some, by="extra.level"), 2) == ["1", "0"]
    with pytest.raises(DataError, match=r"curriculum.by=level: prompt 1 has no number there, but 'Level \?'"):
        ordered(prompts(2, level=["Level 1", "Level ?"]))
    with pytest.raises(DataError, match=r"prompt 0 has no number there, .*; the columns are level"):
        ordered(prompts(1, level=[float("nan")]))


def test_a_curriculum_by_pass_rates_puts_what_nobody_has_tried_last(tmp_path):
    some = prompts(4)
    tried = {0: (8, 1), 1: (8, 8), 3: (8, 4)}
    rates = PassRates(known={digest(some[i].messages): counts for i, counts in tried.items()})
    file = tmp_path / "rates.jsonl"
    file.write_text(rates.lines())
    keys = {"by": "pass_rate", "pass_rates": PassRatesConfig([str(file)])}
    assert drawn(ordered(some, **keys), 4) == ["1", "3", "0", "2"]
    assert drawn(ordered(some, order="hard_first", **keys), 4) == ["0", "3", "1", "2"]
    file.write_text("")
    with pytest.raises(DataError, match="none of these prompts is counted"):
        ordered(some, **keys)


@pytest.mark.parametrize("taken", [0, 5, 8, 19])
def test_a_curriculum_is_resumed_to_the_row_and_not_with_other_numbers(taken):
    some = prompts(8, level=[3, 1, 2, 1, 2, 1, 1, 1])
    cursor, other = ordered(some, epochs=2), ordered(some, epochs=2)
    drawn(cursor, taken)
    other.load_state_dict(cursor.state_dict())
    assert drawn(other, 20) == drawn(cursor, 20)
    for changed in (ordered(some), ordered(prompts(8, level=[0] * 8), epochs=2), in_order(some, DatasetConfig(), 3)):
        with pytest.raises(ValueError, match="is for ranks="):
            changed.load_state_dict(cursor.state_dict())
