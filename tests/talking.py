"""What tests of conversations share: tokenizers with small chat templates, and an engine that says what is written."""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from tiny_model import byte_tokenizer

from partita.engine.api import Completion, Request, Sampling
from partita.engine.text import cut_at_stop
from partita.records import Prompt, Sample
from partita.rollout.episodes import Setting, play
from partita.tasks.chat import Chat, chat_of
from partita.tasks.reward import RewardConfig, RewardRuntime
from partita.tasks.settings import DatasetConfig

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "<|begin|>{% for m in messages %}<|start|>{{ m.role }}<|end|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
NO_END = (
    "{% for m in messages %}{{ 'A: ' if m.role == 'assistant' else 'U: ' }}{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}A: {% endif %}"
)
BLANK = (  # as Llama 2: a blank before the end
    "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }} </s>{% else %}<s>[I] {{ m.content }} [/I]{% endif %}"
    "{% endfor %}"
)
MARKS = (  # no end of its own: the next turn's mark ends a turn
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
NO_THOUGHTS = CHATML.replace(
    "{{ m.content }}", "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}"
)
SPECIAL = {
    CHATML: ["<|im_start|>", "<|im_end|>"], NO_THOUGHTS: ["<|im_start|>", "<|im_end|>"],
    LLAMA: ["<|begin|>", "<|start|>", "<|end|>", "<|eot|>"], NO_END: ["</s>"], BLANK: ["<s>", "</s>"],
    MARKS: ["<|user|>", "<|assistant|>", "<|tool|>"],
}  # fmt: skip


def tokenizer_of(template: str | None):
    """Bytes, and the special tokens of a template."""
    made = byte_tokenizer()
    made.chat_template = template
    made.add_special_tokens({"additional_special_tokens": SPECIAL.get(template or "", [])})
    return made


def chat_with(template: str | None, *ends: str, **section: object) -> Chat:
    """A conversation in a template; ends: the tokens that end a turn."""
    made = tokenizer_of(template)
    return chat_of(made, DatasetConfig(**section), [made.convert_tokens_to_ids(end) for end in ends])  # pyright: ignore[reportArgumentType]


def shown(chat: Chat, ids: Sequence[int]) -> str:
    """The text of ids with special tokens."""
    assert chat.rendering is not None
    return str(chat.rendering.tokenizer.decode(list(ids), skip_special_tokens=False))


class Speaker:
    """Says lines[k] in the k-th turn of every sample, each with the end token; a line of ids is said as it is. Log-probs tell turn
    and place: turn 1 says -1.0, -1.01, ...
    """

    def __init__(self, chat: Chat, end: str, *lines: str | Sequence[int]) -> None:
        assert chat.rendering is not None
        self.chat, self.lines, self.requests = chat, lines, list[Request]()
        self.end = int(chat.rendering.tokenizer.convert_tokens_to_ids(end))

    def submit(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        self.requests += requests
        futures = []
        for request in requests:
            future: Future[Completion] = Future()
            future.set_result(self._said(request))
            futures.append(future)
        return futures

    def _said(self, request: Request) -> Completion:
        turn, most = request.draw.call, request.sampling.max_new_tokens
        line = self.lines[turn]
        whole = [*self.chat.encode(line), self.end] if isinstance(line, str) else list(line)
        ids, cut = whole[:most], len(whole) > most
        text = self.chat.decode(ids)
        before = cut_at_stop(text, request.sampling.stop_strings)
        logprobs = tuple(-(turn + 1) - at / 100 for at in range(len(ids)))
        reason = "length" if cut and before is None else "stop"
        return Completion(tuple(ids), logprobs, (turn,) * len(ids), reason, text if before is None else before)

    def publish(self, weights: Iterable[object], version: int) -> None:
        raise AssertionError("nothing is trained here")

    def close(self) -> None:
        pass


def asked(chat: Chat, words: str = "Hi", **row: object) -> Prompt:
    """A prompt of one user message."""
    messages = ({"role": "user", "content": words},)
    ids = chat.opening(messages)
    return Prompt("p", tuple(ids), shown(chat, ids), dict(row), messages)


def played(engine: Speaker, workflow, prompt: Prompt, *rewards, samples: int = 1, **setting) -> list[Sample]:
    """The samples of one group."""
    scorer = RewardRuntime(RewardConfig(processes=1), rewards, needed=False)
    values = {
        "sampling": Sampling(64, stop_ids=engine.chat.stop_ids),
        "seed": 1,
        "stream": 0,
        "chat": engine.chat,
    } | setting
    try:
        made = Setting(engine, workflow, scorer, **values)
        [group] = asyncio.run(asyncio.wait_for(play(made, [(0, prompt)], samples), 60))
        return group.samples
    finally:
        scorer.close()
