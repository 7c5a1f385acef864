"""The sections `gconfig` (how completions are sampled) and `rollout` (what samples them).

Left out: the environment of a rollout. What a completion answers and how it is scored is `tasks` and `rollout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import torch

from partita.config.schema import key, key_factory
from partita.engine.api import Sampling
from partita.engine.servers.kinds import server_kinds


@dataclass(frozen=True)
class AdaptiveN:
    """More completions for prompts that the policy is undecided about, fewer for the others; n_samples on average."""

    min: int = key(2, "fewest completions of a prompt: one alone has nothing to be compared with", ge=2)
    max: int = key(16, "most completions of a prompt", ge=2)
    score: Literal["entropy", "variance"] = key(
        "entropy",
        "what the completions beyond min are in proportion to, from the prompt's last rollout: entropy per token as "
        "sampled, or variance of the raw rewards",
    )


@dataclass(frozen=True)
class GenerationConfig:
    """How completions are sampled."""

    n_samples: int = key(1, "completions per prompt", ge=1)
    adaptive_n: AdaptiveN | None = key(
        None, "completions per prompt that follow the prompt; a step samples as many as with n_samples for each"
    )
    max_new_tokens: int = key(256, "most tokens of a completion, its end-of-sequence token included", ge=1)
    min_new_tokens: int = key(0, "no stop token and no stop string ends a completion before this many tokens", ge=0)
    temperature: float = key(1.0, "divides the logits before the softmax; 0 is greedy", ge=0.0)
    top_k: int = key(0, "sample among this many likeliest tokens; 0 is all", ge=0)
    top_p: float = key(1.0, "sample among the likeliest tokens that reach this probability; 1 is all", gt=0.0, le=1.0)
    min_p: float = key(0.0, "drop tokens less likely than this times the likeliest; 0 drops none", ge=0.0, lt=1.0)
    stop: tuple[str, ...] = key((), "strings that end a completion: its text ends before them, its tokens are all kept")
    stop_token_ids: tuple[int, ...] = key((), "ids that end a completion, beside those that the model declares", ge=0)
    allow_truncated_sampling: bool = key(
        False, "train on samples drawn with top_k, top_p, min_p or min_new_tokens: importance ratios are then biased"
    )

    def __post_init__(self) -> None:
        """Raise ValueError for values that contradict each other."""
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens={self.min_new_tokens} is larger than max_new_tokens={self.max_new_tokens}"
            )
        adaptive = self.adaptive_n
        if adaptive is not None and not adaptive.min <= self.n_samples <= adaptive.max:
            raise ValueError(
                f"n_samples={self.n_samples} is the mean over prompts and must lie between adaptive_n.min={adaptive.min} and "
                f"adaptive_n.max={adaptive.max}"
            )
        if "" in self.stop:
            raise ValueError(f"stop={list(self.stop)} holds an empty string, which every text contains")

    @property
    def truncations(self) -> tuple[str, ...]:
        """The settings that sample from something else than the full softmax, as "key=value"."""
        given = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p, "min_new_tokens": self.min_new_tokens}
        neutral = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "min_new_tokens": 0}
        return tuple(f"{name}={value}" for name, value in given.items() if value != neutral[name])

    def check_training(self) -> str | None:
        """A warning to show when samples of these settings are trained on, or None.

        Raises ValueError for greedy sampling, and for truncated sampling that was not allowed explicitly: importance
        ratios would compare a renormalised distribution with the full one.
        """
        if self.temperature == 0:
            raise ValueError("temperature=0 is greedy: all samples of a prompt are the same and nothing can be learnt")
        if not self.truncations:
            return None
        settings = ", ".join(self.truncations)
        if not self.allow_truncated_sampling:
            raise ValueError(
                f"{settings}: training needs samples of the full softmax, whose log-probs the trainer computes; "
                "remove it or set allow_truncated_sampling=true"
            )
        return f"samples are drawn with {settings}, but behaviour log-probs are of the full softmax: ratios are biased"

    def sampling(self, stop_ids: tuple[int, ...]) -> Sampling:
        """What the engine needs; `stop_ids` are the model's."""
        return Sampling(
            max_new_tokens=self.max_new_tokens,
            min_new_tokens=self.min_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            stop_ids=tuple(dict.fromkeys((*stop_ids, *self.stop_token_ids))),
            stop_strings=self.stop,
        )


@dataclass(frozen=True)
class ServerConfig:
    """How engine servers are started, and what is expected of them; of given ones only the second half counts."""

    python: str | None = key(
        None, "interpreter of the environment that the server is installed in; null is that of the run"
    )
    tensor_parallel: int = key(1, "GPUs that one server splits the model over", ge=1)
    args: tuple[str, ...] = key((), "more arguments of the server's own command line, as [--enforce-eager]")
    env: dict[str, Any] = key_factory(dict, "environment variables of a server, as {VLLM_CPU_KVCACHE_SPACE: 2}")
    context: int | None = key(
        None,
        "tokens of prompt and completion together that a server has room for; null is all that the model can",
        ge=2,
    )
    start_timeout: float = key(
        600.0,
        "seconds until a server must answer after its start, after it was lost, and when it is given new weights, before the run "
        "fails",
        gt=0,
    )
    health_seconds: float = key(
        5.0, "seconds between two looks at whether a server still answers; three that fail in a row make it lost", gt=0
    )
    answer_timeout: float | None = key(
        None,
        "seconds in which a server that was asked something must answer one of its requests, whatever it says of its health, or it "
        "is lost: more than the longest response takes, and of the built-in engine in synchronous runs the longest round; null "
        "waits",
        gt=0,
    )
    weights: Literal["auto", "folder", "transfer"] = key(
        "auto",
        "how new weights reach the servers: through a folder of safetensors that they read, or by the server's own transfer from "
        "GPU to GPU; auto takes the transfer where policy and servers are on GPUs and the server's package can be imported here",
    )
    weights_folder: str | None = key(
        None,
        "where the newest weights lie for the servers to read, on a disk that all of them see; null is the launch folder of the "
        "run, or a temporary one on this machine",
    )


@dataclass(frozen=True)
class ProbeConfig:
    """After each weight update every server samples one fixed prompt, and its log-probs are compared with the trainer's."""

    tokens: int = key(16, "tokens to compare; 0 compares nothing", ge=0)
    max_difference: float | None = key(
        None,
        "mean absolute difference of a token's log-prob, in nats, that ends the run; null is 0.3 where the server or the policy "
        "computes in bfloat16 and 0.02 where neither does",
        gt=0,
    )


@dataclass(frozen=True)
class RolloutConfig:
    """What samples completions, and how far ahead of training."""

    backend: str = key(
        "local",
        "the engine: local is the built-in one, in the trainer's process or, with servers, in processes of its own; "
        "vllm and sglang are servers of these. Servers are given by rollout.servers, or started by the run (allocation.servers)",
        choices=("local", *server_kinds()),
    )
    servers: tuple[str, ...] = key(
        (), "addresses of running servers, as [http://host:8000]; they get the run's weights"
    )
    server: ServerConfig = key_factory(ServerConfig, "servers that the run starts, and how it deals with them")
    probe: ProbeConfig = key_factory(ProbeConfig, "the check that a server has the trainer's weights")
    dtype: Literal["auto", "bfloat16", "float32"] = key(
        "auto", "precision of the engine's weights and cache; auto is bfloat16 where the hardware computes in it"
    )
    max_concurrent_rollouts: int = key(64, "slots of the engine: completions sampled at the same time", ge=1)
    prefill_tokens: int = key(2048, "most tokens of one prefill, padding included; a longer prompt is alone", ge=1)
    compile: bool = key(
        False,
        "let torch.compile write the layers that decode: some 20 s at the start, and on CPUs slower than the built-in way",
    )
    policy: Literal["newest", "starting"] = key(
        "newest",
        "whose weights sample: the policy of now, or, for the whole run, those that training started from (RFT); "
        "evaluations are of the policy of now in both",
    )
    max_head_offpolicyness: int = key(0, "weight versions that a trained sample may be old; 0 is synchronous", ge=0)
    workflow: str = key(
        "single_turn",
        "how a sample comes about, in training and evaluation: single_turn (prompt, response, reward), multi_turn (with an "
        "environment), retry (a wrong answer is told so), tools (the model calls functions), agent (a program that asks the model "
        "at a base_url), or your own class as path/file.py:Name or package.module:Name",
    )
    workflow_kwargs: dict[str, Any] = key_factory(
        dict, "arguments of the workflow, as {environment: path/file.py:Name}"
    )

    def __post_init__(self) -> None:
        """Raise ValueError for addresses that are none, or that name one server twice."""
        for url in self.servers:
            if not is_address(url):
                raise ValueError(f"servers: {url!r} is no address; write it as http://host:port")
        if len(set(self.servers)) < len(self.servers):
            raise ValueError(f"servers={list(self.servers)} names a server twice: its slots would be counted twice")


def is_address(url: str) -> bool:
    """Whether it names a server: http or https, a host, and a port that is a number where there is one."""
    try:
        found = urlsplit(url)
        return found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        return False


def compute_dtype(name: Literal["auto", "bfloat16", "float32"], device: torch.device) -> torch.dtype:
    """The dtype that `rollout.dtype` means on `device`."""
    if name != "auto":
        return torch.bfloat16 if name == "bfloat16" else torch.float32
    if device.type == "cpu":
        able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
        # Emulated bfloat16 products are slower than float32 ones.
        return torch.bfloat16 if able.get("avx512_bf16") or able.get("amx_bf16") else torch.float32
    if device.type == "cuda":
        if not torch.cuda.is_available():  # it is another machine's
            return torch.bfloat16
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return torch.float32
