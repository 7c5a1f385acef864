"""The `reward.judges` section of a config: language models behind a server that are asked what a response is worth."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from partita.config.schema import key, key_factory, required


@dataclass(frozen=True)
class BudgetConfig:
    """What a judge may use up in a run, resumed parts included."""

    max_requests: int | None = key(None, "requests that are sent, further tries included; null for no limit", ge=0)
    max_tokens: int | None = key(
        None, "tokens of its prompts and replies, by the server's count; no request starts from there on", ge=0
    )
    max_cost: float | None = key(None, "in the currency of the prices; no request starts from there on", ge=0)
    price_in: float | None = key(None, "of a million tokens of prompts", ge=0)
    price_out: float | None = key(None, "of a million tokens of replies", ge=0)
    on_reached: Literal["end_run", "reward_error"] = key(
        "end_run",
        "end_run: the run ends with a checkpoint of the steps before; reward_error: what it is not asked about any more has no "
        "reward and is left out of training",
    )

    def __post_init__(self) -> None:
        if (self.price_in is None) != (self.price_out is None):
            raise ValueError("price_in and price_out: set both, or none")
        if self.max_cost is not None and self.price_in is None:
            raise ValueError(f"max_cost={self.max_cost} needs price_in and price_out, of a million tokens each")

    @property
    def counts_tokens(self) -> bool:
        """Whether a limit depends on what the server says of tokens."""
        return self.max_tokens is not None or self.max_cost is not None


@dataclass(frozen=True)
class JudgeConfig:
    """A language model at a server that speaks OpenAI's chat protocol, and how its verdict is read."""

    base_url: str = required(
        "address up to `/chat/completions`, as https://api.openai.com/v1, http://localhost:8000/v1"
    )
    model: str = required("what the model is called at the server")
    api_key_env: str | None = key(
        None, "name of the environment variable that holds the key, which is written nowhere; null sends none"
    )
    weight: float = key(1.0, "weight of its score in the sum")
    prompt: str | None = key(
        None,
        "what it is asked, with {response} and what else it needs: {prompt}, {answer}, any column, {steps} with steps; {{name}} "
        "is {name} itself, other braces are left alone",
    )
    prompt_path: str | None = key(None, "a text file that holds what it is asked, in place of prompt")
    system: str | None = key(None, "a system message; null for none")
    temperature: float | None = key(0.0, "null leaves it to the server", ge=0)
    max_tokens: int | None = key(None, "longest reply; null: 1 with yes_no, else 1024", ge=1)
    extra_body: dict[str, Any] = key_factory(
        dict,
        "further fields of each request, as {reasoning_effort: low}; null takes a field out, as {max_tokens: null}",
    )
    score_from: Literal["json", "number", "choice", "yes_no"] = key(
        "json",
        "json: the field of the last JSON object of its reply; number: the one number on the last line; choice: the one label "
        "on the last line; yes_no: the probability of Yes against No where it says one of them, for servers with logprobs",
    )
    field: str | None = key(None, "json: the field, a dot reaching inside; null: score, with steps scores")
    choices: dict[str, float] = key_factory(dict, "choice: what each label is worth, as {A: 1, B: 0.5, C: 0}")
    minimum: float = key(0.0, "the lowest verdict, which is worth 0; one below is no verdict")
    maximum: float = key(1.0, "the highest verdict, which is worth 1; one above is no verdict")
    steps: str | None = key(
        None,
        "ask for a score of each step, for actor.credit=process. Steps are lines, paragraphs, or what a regular expression "
        "finds between them, as '(?=Step \\d+:)'; null asks about the whole response",
    )
    concurrency: int = key(16, "requests that are open at a time", ge=1)
    requests_per_minute: float | None = key(None, "requests that start in a minute, evenly; null for no limit", gt=0)
    timeout_seconds: float = key(60.0, "wall-clock limit of one request", gt=0)
    retries: int = key(
        4,
        "further requests where the server is busy, broken or gone, or a reply holds no verdict, after growing pauses",
        ge=0,
    )
    cache: bool = key(True, "ask the same once, and keep the replies")
    cache_dir: str | None = key(
        None, "folder of the replies, which several runs may share; null: judges/ in the run folder"
    )
    budget: BudgetConfig = key_factory(BudgetConfig, "what it may use up")

    def __post_init__(self) -> None:
        self._check_server()
        if (self.prompt is None) == (self.prompt_path is None):
            raise ValueError("prompt and prompt_path: set one of them, it says what the judge is asked")
        if not self.minimum < self.maximum:
            raise ValueError(f"minimum={self.minimum:g} must be below maximum={self.maximum:g}")
        self._check_verdict()
        if not self.cache and self.cache_dir is not None:
            raise ValueError(f"cache_dir={self.cache_dir} with cache=false: drop one of the two")

    def _check_server(self) -> None:
        address = urlsplit(self.base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError("base_url must begin with http:// or https:// and name a host")
        if address.username or address.password or address.query:
            raise ValueError("base_url must hold no user, password or query: they would be written into the run folder")
        if self.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            # the value is not shown: whoever gets this wrong has put the key itself there
            raise ValueError(
                "api_key_env is the name of an environment variable, as OPENAI_API_KEY, not the key itself"
            )

    def _check_verdict(self) -> None:
        default = (0.0, 1.0)
        if (self.score_from == "choice") != bool(self.choices):
            raise ValueError(
                f"score_from={self.score_from} with choices={self.choices}: choice needs labels, others have none"
            )
        outside = [name for name, value in self.choices.items() if not self.minimum <= value <= self.maximum]
        if outside:
            raise ValueError(f"choices.{outside[0]}={self.choices[outside[0]]:g} is not in minimum to maximum")
        if self.score_from == "yes_no" and (self.minimum, self.maximum) != default:
            raise ValueError("score_from=yes_no is a probability: leave out minimum and maximum")
        if self.field is not None and self.score_from != "json":
            raise ValueError(f"field={self.field} needs score_from=json")
        if self.steps is not None:
            if self.score_from != "json":
                raise ValueError(
                    f"steps needs score_from=json, a list with a score of each step, not {self.score_from}"
                )
            check_border("steps", self.steps)

    @property
    def longest_reply(self) -> int:
        """Tokens of a reply at most."""
        return self.max_tokens or (1 if self.score_from == "yes_no" else 1024)


def check_border(name: str, between: str) -> None:
    """Raise ValueError for what is no regular expression for borders of steps."""
    try:
        everywhere = re.compile(between).fullmatch("")
    except re.error as error:
        raise ValueError(f"{name}={between!r} is no regular expression: {error}") from error
    if everywhere:
        raise ValueError(f"{name}={between!r} finds a border between any two characters")
