"""A game of several turns, whole: rows to play it with, and an environment. Train: partita train examples/workflows/guess.yaml

The number is between 1 and `high`. The model says one; it hears "higher" or "lower" until it is right or out of turns.
"""

import re

from partita.tasks.catalog import Task, held_out


def _rows(split, size, seed):
    """One row for each number and range. Which split a row is in depends on what it holds, so no game is in both."""
    games = [(high, secret) for high in (5, 6, 7, 8, 9, 10) for secret in range(1, high + 1)]
    kept = [game for game in games if held_out("guess", game) == (split == "test")]
    question = "I am thinking of a number from 1 to {}. Guess it. Say a number only."
    return [{"question": question.format(high), "answer": str(secret), "high": high} for high, secret in kept][:size]


numbers = Task("guess", _rows, ())  # no reward function: the environment judges


class Guess:
    """1 for the right number. Before that a step is worth 0, or minus `cost` where what was said is no number in the range."""

    def __init__(self, cost: float = 0.1) -> None:
        self.cost = cost

    def reset(self, row, seed):
        self.secret, self.high = int(row["answer"]), row["high"]
        # None: the prompt is the row's own. A text would be added to it.

    def step(self, action):
        """What gymnasium returns: observation, reward, terminated, truncated, info."""
        said = re.findall(r"\d+", action)
        guess = int(said[-1]) if said and len(said[-1]) < 10 else 0
        if guess == self.secret:
            return "Right.", 1.0, True, False, {}
        if not 1 <= guess <= self.high:
            return f"Say one number from 1 to {self.high}.", -self.cost, False, False, {}
        return "Higher." if guess < self.secret else "Lower.", 0.0, False, False, {}
