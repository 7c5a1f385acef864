"""SGLang as a server, spoken to through its native endpoints. Written from SGLang's documentation and source (0.5), and so far run
against recorded shapes of its answers only, never against a real SGLang server.

`/generate` takes ids and gives [log-prob, id] pairs, of the full softmax at the sampling temperature (unless the server runs with
SGLANG_RETURN_ORIGINAL_LOGPROB). `/pause_generation` (abort), `/update_weights_from_disk` or `/load_lora_adapter`, `/flush_cache`
and `/continue_generation` change weights; `weight_version` tells with every answer which ones sampled it.
Seeds count only where the server runs with `--enable-deterministic-inference`, which is slower: give it in `rollout.server.args`.
Left out: text; weights from GPU to GPU (`/update_weights_from_distributed`). The model's own end-of-sequence id always ends a
completion: SGLang can ignore it only together with all other stop ids.
"""

from __future__ import annotations

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

ENDS: Mapping[str, StopReason] = {"stop": "stop", "length": "length", "abort": "abort"}
SEED_BITS = 31
START = "start it as `partita launch --dry-run` shows"


@dataclass(frozen=True)
class Sglang:
    """See `Dialect`."""

    name: str = "sglang"
    whole_rounds: bool = False
    adapters_alone: bool = True
    tied_twice: bool = False

    def command(self, served: Served, host: str, port: int) -> Start:
        """See `Dialect`."""
        given: dict[str, object] = {
            "model-path": served.model, "host": host, "port": port, "dtype": served.dtype, "context-length": served.context,
            "max-running-requests": served.slots, "tp-size": served.tensor_parallel, "sampling-defaults": "openai",
            "device": served.device,
        }  # fmt: skip
        flags: list[str] = ["--trust-remote-code"] if served.trust_remote_code else []
        if served.adapter_rank is not None:
            given |= {"max-lora-rank": served.adapter_rank, "lora-target-modules": "all"}
            flags.append("--enable-lora")
        options = [part for key, value in given.items() for part in (f"--{key}", str(value))]
        command = (served.python, "-m", "sglang.launch_server", *options, *flags, *served.args)
        return Start(command, served.env)

    async def check(self, http: httpx2.AsyncClient, served: Served) -> None:
        """See `Dialect`."""
        await _asked(http, "GET", HEALTH)
        found = await _asked(http, "GET", "/server_info")
        problems: list[str] = []
        if found.get("dtype") not in ("auto", served.dtype):
            problems.append(f"--dtype is {found.get('dtype')}, and rollout.dtype means {served.dtype}")
        if (found.get("context_length") or served.context) < served.context:
            problems.append(
                f"--context-length is {found['context_length']}, and the run needs {served.context} (rollout.server.context)"
            )
        if served.adapter_rank is not None:
            if not found.get("enable_lora"):
                problems.append("adapters need --enable-lora")
            elif (found.get("max_lora_rank") or 0) < served.adapter_rank:
                problems.append(
                    f"--max-lora-rank is {found.get('max_lora_rank')}, and adapters have {served.adapter_rank}"
                )
        if problems:
            raise EngineError(f"{http.base_url} cannot serve this run: {'; '.join(problems)}; {START}")

    async def generate(
        self, http: httpx2.AsyncClient, asks: Sequence[Ask], weights: Weights
    ) -> AsyncIterator[tuple[int, Answer | ValueError]]:
        """See `Dialect`."""
        for place, ask in enumerate(asks):
            yield place, await _generated(http, ask, weights)

    async def renew(self, http: httpx2.AsyncClient, weights: Weights) -> None:
        """See `Dialect`. What runs is aborted and comes back."""
        await _asked(http, "POST", "/pause_generation", json={"mode": "abort"})
        folder = str(weights.folder)
        if weights.adapters:
            load = {"lora_name": weights.name, "lora_path": folder}
            loaded = await _asked(http, "POST", "/load_lora_adapter", json=load)
            for name in loaded.get("loaded_adapters") or ():
                if name != weights.name:
                    await _asked(http, "POST", "/unload_lora_adapter", json={"lora_name": name})
            await _asked(http, "POST", "/update_weight_version", json={"new_version": weights.name})
        else:
            update = {"model_path": folder, "weight_version": weights.name, "flush_cache": True}
            await _asked(http, "POST", "/update_weights_from_disk", json=update)
        await _asked(http, "POST", "/flush_cache")
        await _asked(http, "POST", "/continue_generation", json={})


DIALECT = Sglang()


def sampling_params(ask: Ask) -> dict[str, Any]:
    """How SGLang is told to sample."""
    sampling = ask.sampling
    return {
        "max_new_tokens": sampling.max_new_tokens,
        "min_new_tokens": sampling.min_new_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or -1,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "sampling_seed": seed_of(ask.draw, ask.done, SEED_BITS),
        "stop_token_ids": list(sampling.stop_ids),
        "stop": list(sampling.stop_strings),
    }


async def _generated(http: httpx2.AsyncClient, ask: Ask, weights: Weights) -> Answer | ValueError:
    body: dict[str, Any] = {
        "input_ids": ask.prompt_ids, "sampling_params": sampling_params(ask), "return_logprob": True,
        "logprob_start_len": -1,
    }  # fmt: skip
    if weights.adapters:
        body["lora_path"] = weights.name
    try:
        response = await http.post("/generate", json=body)
    except httpx2.TransportError as error:
        raise ServerLost(unreachable(http, error)) from error
    if response.status_code == httpx2.codes.BAD_REQUEST:
        said = refusal(response)
        if weights.adapters and weights.name in said:  # a server that was started again does not know the adapter
            raise ServerLost(f"{http.base_url}/generate: {said}")
        return ValueError(f"{http.base_url}/generate: {said}")
    if response.status_code != httpx2.codes.OK:
        raise ServerLost(f"{http.base_url}/generate answered {response.status_code}: {refusal(response)}")
    with understood(http, "/generate"):
        return read_generated(http, response.json(), weights)


def read_generated(http: httpx2.AsyncClient, body: Mapping[str, Any], weights: Weights) -> Answer:
    """What was sampled: ids are those of the log-probs. Raises OtherWeights, and ServerLost where it ended in a way that is no end
    of a completion.
    """
    meta = body["meta_info"]
    version, ended = meta.get("weight_version"), str((meta.get("finish_reason") or {}).get("type"))
    pairs = meta.get("output_token_logprobs") or ()
    if version != weights.name and (pairs or ended != "abort"):  # none are of no weights
        raise OtherWeights(f"{http.base_url} samples with the weights {version} instead of {weights.name}")
    if ended not in ENDS:
        raise ServerLost(f"{http.base_url} ended a request with {ended!r}")
    ids = tuple(int(pair[1]) for pair in pairs)
    logprobs = tuple(float("nan") if pair[0] is None else float(pair[0]) for pair in pairs)
    return Answer(ids, logprobs, (weights.version,) * len(ids), ENDS[ended])


async def _asked(http: httpx2.AsyncClient, method: str, path: str, **sent: Any) -> Mapping[str, Any]:
    """What a request gives that must succeed: its JSON, or nothing where it is text. Raises ServerLost, EngineError."""
    try:
        response = await http.request(method, path, **sent)
    except httpx2.TransportError as error:
        raise ServerLost(unreachable(http, error)) from error
    if response.status_code == httpx2.codes.SERVICE_UNAVAILABLE:
        raise ServerLost(f"{http.base_url}{path}: not ready")
    if response.status_code == httpx2.codes.NOT_FOUND:
        raise EngineError(
            f"{http.base_url} has no {path}: an SGLang server of version 0.5.6 or newer is needed; {START}"
        )
    is_json = response.headers.get("content-type", "").startswith("application/json") and response.content
    found = response.json() if is_json else {}
    if response.status_code != httpx2.codes.OK or found.get("success") is False:
        raise EngineError(f"{http.base_url}{path} answered {response.status_code}: {refusal(response)}")
    return found
