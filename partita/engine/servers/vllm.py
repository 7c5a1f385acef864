"""vLLM as a server, spoken to through its token-in, token-out endpoint and its endpoints for reinforcement learning.

Written for, and run with, vLLM 0.32: `/inference/v1/generate` (`--enable-scale-out`), and with VLLM_SERVER_DEV_MODE=1 `/pause`,
`/resume`, `/collective_rpc`, `/reset_prefix_cache`, `/update_weight_version`, `/server_info`. The server tells for every token
the name of the weights that sampled it. With `--logprobs-mode processed_logprobs` log-probs are of what is sampled from: the full
softmax at the sampling temperature, unless top_k, top_p, min_p or min_new_tokens cut it.
Left out: text. Stop strings are read by the server too, and read again here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from partita.engine.servers.api import (
    HEALTH,
    Answer,
    Ask,
    EngineError,
    OtherWeights,
    Served,
    ServerLost,
    Start,
    Weights,
    refusal,
    seed_of,
    understood,
    unreachable,
)
from partita.records import StopReason

GENERATE = "/inference/v1/generate"
NO_LOGPROB = -9999.0
"""What vLLM sends for a log-prob that is no number."""
ENDS: Mapping[str, StopReason] = {"stop": "stop", "length": "length", "abort": "abort"}
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values that `--max-lora-rank` knows."""
START = "start it as `partita launch --dry-run` shows"


@dataclass(frozen=True)
class Vllm:
    """See `Dialect`."""

    name: str = "vllm"
    whole_rounds: bool = False
    adapters_alone: bool = True
    tied_twice: bool = (
        True  # on CPUs it keeps the head in an order of its own, and would go on with the one that it has
    )

    def command(self, served: Served, host: str, port: int) -> Start:
        """See `Dialect`. Not by `vllm serve`: the package for CPUs has another name, and that command looks for its own."""
        given: dict[str, object] = {
            "model": served.model, "host": host, "port": port, "dtype": served.dtype, "max-model-len": served.context,
            "max-num-seqs": served.slots, "tensor-parallel-size": served.tensor_parallel,
            "logprobs-mode": "processed_logprobs", "generation-config": "vllm",
        }  # fmt: skip
        flags = ["--enable-scale-out", "--enable-prefix-caching", "--disable-uvicorn-access-log"]
        if served.trust_remote_code:
            flags.append("--trust-remote-code")
        if served.device == "cpu":  # see `check`; a cache in blocks of 128, as is usual there, shares no short prompt
            flags += ["--no-enable-chunked-prefill", "--block-size", "32"]
            given["max-num-batched-tokens"] = max(served.context, served.prefill_tokens)
        else:
            given["weight-transfer-config"] = json.dumps({"backend": "nccl"})
        if served.adapter_rank is not None:
            flags.append("--enable-lora")
            given["max-lora-rank"] = next((rank for rank in RANKS if rank >= served.adapter_rank), RANKS[-1])
        options = [part for key, value in given.items() for part in (f"--{key}", str(value))]
        env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", **served.env}
        return Start((served.python, "-m", "vllm.entrypoints.openai.api_server", *options, *flags, *served.args), env)

    async def check(self, http: httpx2.AsyncClient, served: Served) -> None:
        """See `Dialect`."""
        await _json(http, "GET", HEALTH)
        found = await _json(http, "GET", "/server_info", params={"config_format": "json"})
        with understood(http, "/server_info"):
            problems = mismatches(found, served)
        if problems:
            raise EngineError(f"{http.base_url} cannot serve this run: {'; '.join(problems)}; {START}")

    async def generate(
        self, http: httpx2.AsyncClient, asks: Sequence[Ask], weights: Weights
    ) -> AsyncIterator[tuple[int, Answer | ValueError]]:
        """See `Dialect`."""
        for place, ask in enumerate(asks):
            yield place, await _generated(http, ask, weights)

    async def renew(self, http: httpx2.AsyncClient, weights: Weights) -> None:
        """See `Dialect`. What runs is aborted and comes back; its keys and values are dropped with all others."""
        await _done(http, "/pause", params={"mode": "abort"})
        await _load(http, weights)
        dropped = await _done(http, "/reset_prefix_cache")
        if not dropped.get("success"):
            raise EngineError(
                f"{http.base_url} could not drop what it had cached for other weights (/reset_prefix_cache)"
            )
        await _done(http, "/update_weight_version", json={"new_version": weights.name})
        await _done(http, "/resume")


DIALECT = Vllm()


def mismatches(found: Mapping[str, Any], served: Served) -> list[str]:
    """What of a server's own options does not fit what it is to serve."""
    config, model = found["vllm_config"], found["vllm_config"]["model_config"]
    dtype, context = str(model["dtype"]).removeprefix("torch."), int(model["max_model_len"])
    problems: list[str] = []
    if model["logprobs_mode"] != "processed_logprobs":
        problems.append(f"--logprobs-mode is {model['logprobs_mode']} and must be processed_logprobs")
    if dtype != served.dtype:
        problems.append(f"--dtype is {dtype}, and rollout.dtype means {served.dtype}")
    if context < served.context:
        problems.append(f"--max-model-len is {context}, and the run needs {served.context} (rollout.server.context)")
    if config["device_config"]["device"] == "cpu" and config["scheduler_config"]["enable_chunked_prefill"]:
        # a prompt of a request with a seed that is computed in two parts ends the server there: its worker takes the
        # generator back by an offset, which generators of CPUs do not have
        problems.append("on a CPU it needs --no-enable-chunked-prefill")
    if served.adapter_rank is not None:
        rank = (config["lora_config"] or {}).get("max_lora_rank", 0)
        if int(rank) < served.adapter_rank:
            problems.append(f"adapters of rank {served.adapter_rank} need --enable-lora and --max-lora-rank")
        if not found["vllm_env"].get("VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
            problems.append("adapters need VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
    return problems


def sampling_params(ask: Ask) -> dict[str, Any]:
    """How vLLM is told to sample. Its own end-of-sequence id is ignored: `stop_ids` holds all that end a completion."""
    sampling = ask.sampling
    return {
        "max_tokens": sampling.max_new_tokens,
        "min_tokens": sampling.min_new_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "seed": seed_of(ask.draw, ask.done),
        "stop_token_ids": list(sampling.stop_ids),
        "stop": list(sampling.stop_strings),
        "ignore_eos": True,
        "detokenize": bool(sampling.stop_strings),
        "logprobs": 0,  # of the sampled token alone
    }


async def _generated(http: httpx2.AsyncClient, ask: Ask, weights: Weights) -> Answer | ValueError:
    body: dict[str, Any] = {"token_ids": ask.prompt_ids, "sampling_params": sampling_params(ask)}
    if weights.adapters:
        body["model"] = weights.name
    try:
        response = await http.post(GENERATE, json=body)
    except httpx2.TransportError as error:
        raise ServerLost(unreachable(http, error)) from error
    if response.status_code == httpx2.codes.BAD_REQUEST:
        return ValueError(f"{http.base_url}{GENERATE}: {refusal(response)}")
    if response.status_code == httpx2.codes.FORBIDDEN:
        raise EngineError(f"{http.base_url}{GENERATE}: {refusal(response)}; {START}, with --enable-scale-out")
    if response.status_code != httpx2.codes.OK:  # 404: a server that was started again does not know the adapter
        raise ServerLost(f"{http.base_url}{GENERATE} answered {response.status_code}: {refusal(response)}")
    with understood(http, GENERATE):
        return read_choice(http, response.json()["choices"][0], weights)


def read_choice(http: httpx2.AsyncClient, choice: Mapping[str, Any], weights: Weights) -> Answer:
    """What was sampled. Raises OtherWeights, ServerLost where the server failed meanwhile, and ValueError."""
    ids, spans = tuple(map(int, choice["token_ids"] or ())), choice["weight_versions"] or ()
    others = {str(span["version"]) for span in spans} - {weights.name}
    if others:
        raise OtherWeights(f"{http.base_url} samples with the weights {sorted(others)} instead of {weights.name}")
    if choice["finish_reason"] not in ENDS:
        raise ServerLost(f"{http.base_url} ended a request with {choice['finish_reason']!r}")
    told = ((choice["logprobs"] or {}).get("content") or ())[: len(ids)]
    logprobs = tuple(float("nan") if one["logprob"] == NO_LOGPROB else float(one["logprob"]) for one in told)
    if len(logprobs) != len(ids) or (ids and not spans):
        raise ValueError(f"{len(ids)} ids with {len(logprobs)} log-probs and {len(spans)} spans of weights")
    return Answer(ids, logprobs, (weights.version,) * len(ids), ENDS[choice["finish_reason"]])


async def _load(http: httpx2.AsyncClient, weights: Weights) -> None:
    if weights.received:
        return
    if not weights.adapters:
        load = {"method": "reload_weights", "kwargs": {"weights_path": str(weights.folder)}}
        await _done(http, "/collective_rpc", json=load)
        return
    about = {"lora_name": weights.name, "lora_path": str(weights.folder)}
    await _done(http, "/v1/load_lora_adapter", json=about)
    models = await _json(http, "GET", "/v1/models")
    for model in models["data"]:
        if model.get("parent") is not None and model["id"] != weights.name:
            await _done(http, "/v1/unload_lora_adapter", json={"lora_name": model["id"]})


async def _done(http: httpx2.AsyncClient, path: str, **sent: Any) -> dict[str, Any]:
    """What a POST gives. Raises ServerLost, EngineError."""
    return await _json(http, "POST", path, **sent)


async def _json(http: httpx2.AsyncClient, method: str, path: str, **sent: Any) -> dict[str, Any]:
    """What a request gives, empty where that is no JSON. Raises ServerLost, and EngineError for a refusal."""
    try:
        response = await http.request(method, path, **sent)
    except httpx2.TransportError as error:
        raise ServerLost(unreachable(http, error)) from error
    code, said = response.status_code, f"{http.base_url}{path} answered {response.status_code}: {refusal(response)}"
    if code == httpx2.codes.SERVICE_UNAVAILABLE:
        raise ServerLost(said)
    if code == httpx2.codes.NOT_FOUND:
        raise EngineError(f"{said}; {START}, with VLLM_SERVER_DEV_MODE=1")
    if code != httpx2.codes.OK:
        raise EngineError(said)
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return response.json() if is_json and response.content else {}
