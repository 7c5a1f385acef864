import pytest

from partita.engine.servers.api import Answer, EngineError
from partita.engine.servers.probe import Probe, apart


def probe(scores: dict[int, float], limit: float = 0.5) -> Probe:
    """The trainer says of every token what `scores` has for the newest version, which is its largest key."""
    return Probe(
        lambda prompt, ids, temperature: [scores[max(scores)]] * len(ids), (7,), tokens=3, temperature=1, limit=limit
    )


def answer(logprob: float, ids: tuple[int, ...] = (1, 2, 3)) -> Answer:
    return Answer(ids, (logprob,) * len(ids), (0,) * len(ids), "length")


def test_the_difference_is_the_mean_over_tokens_and_the_largest_over_servers():
    assert apart((-1.0, -2.0), (-1.5, -1.0)) == 0.75
    made = probe({0: -1.0})
    made.compare({"a": answer(-1.1), "b": answer(-1.4)}, 0)
    assert made.difference == pytest.approx(0.4)


@pytest.mark.parametrize("logprob", [-1.6, float("nan")])
def test_a_difference_beyond_the_limit_names_server_and_version(logprob):
    with pytest.raises(EngineError, match="b has taken the weights of version 9"):
        probe({0: -1.0}).compare({"a": answer(-1.1), "b": answer(logprob)}, 9)


def test_the_same_answer_to_the_last_bit_from_weights_that_moved_is_stale():
    scores = {0: -1.0}
    made = probe(scores)
    made.compare({"a": answer(-1.1)}, 0)
    scores[1] = -1.2
    with pytest.raises(
        EngineError, match=r"version 1, but answers a probe prompt exactly as with version 0.*moved by 0.2"
    ):
        made.compare({"a": answer(-1.1)}, 1)


def test_an_answer_that_moved_a_little_is_not_stale_and_neither_is_one_of_a_step_that_was_skipped():
    scores = {0: -1.0}
    made = probe(scores)
    made.compare({"a": answer(-1.1)}, 0)
    made.compare({"a": answer(-1.1)}, 1)  # nothing was learnt
    scores[2] = -1.2
    made.compare({"a": answer(-1.10001)}, 2)


def test_a_server_that_came_back_is_compared_as_far_as_it_drew_the_same():
    made = probe({0: -1.0})
    made.compare({"a": answer(-1.1)}, 3)
    made.check_again("a", answer(-1.2, (1, 2, 9)), 3)
    made.check_again("a", answer(-9.0, (9, 2, 3)), 3)  # nothing in common
    made.check_again("a", answer(-9.0), 4)  # of an update that is not compared yet
    with pytest.raises(EngineError, match="version 3"):
        made.check_again("a", answer(-2.0, (1, 2, 9)), 3)
