"""What the records say of themselves."""

from partita.records import Group, Prompt, Sample


def test_the_rewards_of_a_group_are_those_of_the_samples_that_have_one() -> None:
    samples = [Sample([], "stop", "", reward) for reward in (1.0, None, 0.0)]
    assert Group(0, Prompt("p", (), "", {}), samples).rewards == [1.0, 0.0]
