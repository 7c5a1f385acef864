"""The scheduler alone: start order, shared prefill, budgets, dense rows."""

from dataclasses import dataclass

import pytest

from partita.engine.scheduler import Scheduler, Start

A, B, C = (1, 2), (3, 4, 5), (6,)


@dataclass(frozen=True)
class Ask:
    name: str
    prompt_ids: tuple[int, ...]


def _group(name: str, prompt: tuple[int, ...], n: int) -> list[Ask]:
    return [Ask(f"{name}{i}", prompt) for i in range(n)]


def _names(scheduler: Scheduler[Ask]) -> str:
    return " ".join(ask.name for ask in scheduler.running)


def test_a_group_is_prefilled_once():
    scheduler: Scheduler[Ask] = Scheduler(8, 100)
    scheduler.submit([*_group("a", A, 3), *_group("b", B, 2)])
    admission = scheduler.admit()
    assert admission is not None
    assert admission.prefill == (A, B)
    assert admission.starts == (Start(A, 0, 3), Start(B, 3, 2))
    assert admission.keep == frozenset()
    assert scheduler.admit() is None and not scheduler.idle


def test_equal_prompts_that_are_not_neighbours_share_too():
    scheduler: Scheduler[Ask] = Scheduler(8, 100)
    scheduler.submit([Ask("a", A), Ask("b", B), Ask("c", A)])
    admission = scheduler.admit()
    assert admission is not None
    assert admission.prefill == (A, B)
    assert admission.starts == (Start(A, 0, 1), Start(B, 1, 1), Start(A, 2, 1))


def test_a_prompt_is_kept_while_its_group_waits_for_slots():
    scheduler: Scheduler[Ask] = Scheduler(2, 100)
    scheduler.submit([*_group("a", A, 3), Ask("b", B)])
    first = scheduler.admit()
    assert first is not None and first.prefill == (A,) and first.keep == frozenset({A})
    scheduler.retire([0, 1])
    second = scheduler.admit()
    assert second is not None
    assert second.prefill == (B,) and second.keep == frozenset()  # A comes from what was kept
    assert second.starts == (Start(A, 0, 1), Start(B, 1, 1))


def test_new_weights_make_kept_prompts_worthless():
    scheduler: Scheduler[Ask] = Scheduler(1, 100)
    scheduler.submit(_group("a", A, 2))
    scheduler.admit()
    scheduler.forget_prefixes()
    scheduler.retire([0])
    again = scheduler.admit()
    assert again is not None and again.prefill == (A,)


def test_the_prefill_budget_counts_padding_and_never_starves_a_long_prompt():
    scheduler: Scheduler[Ask] = Scheduler(8, 5)
    long = tuple(range(9))
    scheduler.submit([Ask("a", A), Ask("c", C), Ask("b", B), Ask("long", long), Ask("c2", C)])
    prefills = []
    while (admission := scheduler.admit()) is not None:
        prefills.append(admission.prefill)
    assert prefills == [(A, C), (B,), (long,)]  # 2 x 2 fits into 5, 3 x 3 does not; C was kept
    assert _names(scheduler) == "a c b long c2"


def test_start_order_is_submit_order_across_rounds():
    scheduler: Scheduler[Ask] = Scheduler(2, 100)
    scheduler.submit(_group("a", A, 3))
    scheduler.submit(_group("b", B, 2))
    order = []
    while not scheduler.idle:
        scheduler.admit()
        order.append(scheduler.running[0].name)
        scheduler.retire([0])
    assert order == ["a0", "a1", "a2", "b0", "b1"]


@pytest.mark.parametrize(
    ("rows", "sources", "targets", "left"),
    [
        ([5], (), (), "a0 a1 a2 a3 a4"),
        ([0], (5,), (0,), "a5 a1 a2 a3 a4"),
        ([4, 1, 5], (3,), (1,), "a0 a3 a2"),
        ([0, 1, 2], (3, 4, 5), (0, 1, 2), "a3 a4 a5"),
        ([0, 1, 2, 3, 4, 5], (), (), ""),
    ],
)
def test_retired_rows_are_filled_with_the_last_live_ones(rows, sources, targets, left):
    scheduler: Scheduler[Ask] = Scheduler(6, 100)
    scheduler.submit(_group("a", A, 6))
    scheduler.admit()
    moves = scheduler.retire(rows)
    assert (moves.sources, moves.targets, moves.live) == (sources, targets, 6 - len(rows))
    assert _names(scheduler) == left


def test_open_lists_running_and_waiting():
    scheduler: Scheduler[Ask] = Scheduler(1, 100)
    scheduler.submit(_group("a", A, 3))
    scheduler.admit()
    assert [ask.name for ask in scheduler.open] == ["a0", "a1", "a2"]


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="slots=0"):
        Scheduler(0, 1)
