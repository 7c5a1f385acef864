"""Tries and right ones of each prompt: counted, kept, added up over runs."""

import json

import pytest

from partita.records import Group, Prompt, Sample
from partita.tasks.files import DataError
from partita.tasks.rates import PassRates
from partita.tasks.split import digest


def group(words, rewards):
    messages = ({"role": "user", "content": words},)
    samples = [
        Sample([], "stop", "", reward, status="ok" if reward is not None else "reward_error") for reward in rewards
    ]
    return Group(0, Prompt(words, (), "", {}, messages), samples)


def asked(words):
    return ({"role": "user", "content": words},)


def test_samples_without_a_reward_are_no_tries():
    rates = PassRates()
    rates.observe([group("a", [1.0, 0.0, None, 0.99]), group("b", [None]), group("c", [1.5])])
    rates.observe([group("a", [1.0])])
    assert rates.known == {digest(asked("a")): (4, 2), digest(asked("c")): (1, 1)}
    assert (rates.rate(asked("a")), rates.rate(asked("b")), rates.rate(asked("c"))) == (0.5, None, 1.0)
    lenient = PassRates(right_at=0.0)
    lenient.observe([group("a", [1.0, 0.0, -1.0])])
    assert lenient.rate(asked("a")) == 2 / 3


def test_a_prompt_is_known_by_all_it_is_asked_with():
    rates = PassRates()
    rates.observe([group("a", [1.0])])
    assert rates.rate([{"role": "system", "content": "Be brief."}, *asked("a")]) is None
    # the digest is that of the plain messages: fixed, or files of earlier runs would say nothing
    assert digest(asked("a")) == "33bc2c693aa19ea62d7023f1e8e72ad9"


def test_counts_of_several_files_are_added_up(tmp_path):
    first, second = PassRates(), PassRates()
    first.observe([group("a", [1.0, 0.0]), group("b", [0.0])])
    second.observe([group("a", [1.0, 1.0])])
    for name, rates in (("first", first), ("second", second)):
        (tmp_path / name).write_text(rates.lines())
    assert json.loads(first.lines().splitlines()[0]) == {"prompt": digest(asked("a")), "tries": 2, "right": 1}
    both = PassRates.read([tmp_path / "first", tmp_path / "second"])
    assert (both.rate(asked("a")), both.rate(asked("b"))) == (0.75, 0.0)
    assert PassRates.read([tmp_path / "first"]).lines() == first.lines()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "a", "tries": 2}', "not a line of {prompt, tries, right}"),
        ("[]", "not a line of"),
        ("{", "not a line of"),
        ("[" * 100_000, "not a line of"),
        ('{"prompt": "a", "tries": 2, "right": 3}', "3 right of 2 tries is no count"),
        ('{"prompt": "a", "tries": 2.0, "right": 1}', "1 right of 2.0 tries"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path, line, words):
    (tmp_path / "rates").write_text(f'{{"prompt": "a", "tries": 1, "right": 1}}\n{line}\n')
    with pytest.raises(DataError, match=f"rates:2: {words}"):
        PassRates.read([tmp_path / "rates"])
    with pytest.raises(DataError, match="cannot be read"):
        PassRates.read([tmp_path / "missing"])


def test_counting_goes_on_from_a_checkpoint():
    rates = PassRates()
    rates.observe([group("a", [1.0, 0.0])])
    other = PassRates()
    other.load_state_dict(json.loads(json.dumps(rates.state_dict())))
    assert other == rates
    stricter = PassRates(right_at=2.0)
    stricter.load_state_dict(rates.state_dict())
    assert stricter.known == {}
