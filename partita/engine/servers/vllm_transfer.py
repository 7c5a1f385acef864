"""Weights from this process's GPU to those of vLLM's servers, by its own transfer: NCCL broadcasts in one group with all workers.

NOT RUN YET: it needs GPUs on both sides. What it says over HTTP is tested, and follows vLLM 0.32: `/init_weight_transfer_engine`
once for a set of servers; then, for each update, `/pause`, `/start_weight_update`, `/update_weights` for each bundle of weights
while these are broadcast, `/finish_weight_update`.
Left out: the servers' caches and the name of the weights; `Vllm.renew` deals with these, as for weights out of a folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import httpx2
import torch
from torch import Tensor

from partita.engine.servers.api import EngineError

BUNDLE_BYTES = 1 << 30
"""Of weights that are announced together, and that this GPU holds meanwhile."""
PACKAGE = "vllm"


class Group(Protocol):
    """What sends a tensor to all workers: vLLM's `PyNcclCommunicator`."""

    def broadcast(self, tensor: Tensor, src: int) -> None:
        """Send, from rank 0."""
        ...

    def destroy(self) -> None:
        """Leave the group."""
        ...


Open = Callable[[str, int, int], Group]
"""(address, port, number of ranks) -> the group, as its rank 0, when all others have joined."""


def can_transfer(device: torch.device) -> bool:
    """Whether this process can send: it computes on a GPU, and vLLM can be imported."""
    return device.type == "cuda" and importlib.util.find_spec(PACKAGE) is not None


def nccl_group(address: str, port: int, size: int) -> Group:
    """A group by vLLM's own helper, on the GPU of now. Raises ImportError."""
    common = importlib.import_module("vllm.distributed.weight_transfer.nccl_common")
    return common.trainer_init({"master_address": address, "master_port": port, "world_size": size})


class VllmTransfer:
    """workers: GPUs of each server. Everything is called on one thread, and blocks it."""

    def __init__(self, workers: int, dtype: torch.dtype, open_group: Open = nccl_group) -> None:
        self._workers, self._dtype, self._open = workers, dtype, open_group
        self._joined: tuple[object, ...] = ()
        self._group: Group | None = None

    def passing(
        self, servers: Sequence[tuple[str, object]], weights: Iterable[tuple[str, Tensor]]
    ) -> Iterator[tuple[str, Tensor]]:
        """The weights, each after it was sent. servers: their addresses, each with what changes when it was started again.

        Raises EngineError.
        """
        urls = [url for url, _ in servers]
        with _callers(urls) as call:
            call("/pause?mode=abort")
            if self._joined != tuple(servers):
                self._join(urls, call)
                self._joined = tuple(servers)
            call("/start_weight_update")
            for bundle in bundles(weights, BUNDLE_BYTES):
                self._send(bundle, call)
                yield from bundle
            call("/finish_weight_update")

    def _join(self, urls: Sequence[str], call: Callers) -> None:
        """Every worker and this process meet in a group of their own."""
        if self._group is not None:
            self._group.destroy()
        size, address = 1 + self._workers * len(urls), socket.gethostbyname(socket.gethostname())
        with socket.socket() as free:
            free.bind((address, 0))
            port = free.getsockname()[1]
        common = {"master_address": address, "master_port": port, "world_size": size, "packed": False}
        bodies = [{"init_info": common | {"rank_offset": 1 + at * self._workers}} for at in range(len(urls))]
        wait = call.begin("/init_weight_transfer_engine", bodies)
        self._group = self._open(address, port, size)
        wait()

    def _send(self, bundle: Sequence[tuple[str, Tensor]], call: Callers) -> None:
        assert self._group is not None, "joined before anything is sent"
        sent = [weight.to(self._dtype).contiguous() for _, weight in bundle]
        about = {
            "names": [name for name, _ in bundle],
            "dtype_names": [str(weight.dtype).removeprefix("torch.") for weight in sent],
            "shapes": [list(weight.shape) for weight in sent],
        }
        wait = call.begin("/update_weights", [{"update_info": about}] * call.count)
        for weight in sent:
            self._group.broadcast(weight, src=0)
        wait()


def bundles(weights: Iterable[tuple[str, Tensor]], size: int) -> Iterator[list[tuple[str, Tensor]]]:
    """The weights in lists of about so many bytes."""
    bundle, held = list[tuple[str, Tensor]](), 0
    for name, weight in weights:
        bundle.append((name, weight))
        held += weight.nbytes
        if held >= size:
            yield bundle
            bundle, held = [], 0
    if bundle:
        yield bundle


class Callers:
    """Asks all servers the same at once."""

    def __init__(self, clients: Sequence[httpx2.Client], threads: ThreadPoolExecutor) -> None:
        self._clients, self._threads, self.count = clients, threads, len(clients)

    def __call__(self, path: str) -> None:
        """POST without a body, and wait."""
        self.begin(path, [None] * self.count)()

    def begin(self, path: str, bodies: Sequence[Any]) -> Callable[[], None]:
        """POST to each server its body; what is given waits for all of them, and raises EngineError."""
        asked = [
            self._threads.submit(self._post, http, path, body) for http, body in zip(self._clients, bodies, strict=True)
        ]

        def wait() -> None:
            for one in asked:
                one.result()

        return wait

    def _post(self, http: httpx2.Client, path: str, body: Any) -> None:
        try:
            response = http.post(path, json=body) if body is not None else http.post(path)
            said = "" if response.status_code == httpx2.codes.OK else f"{response.status_code} {response.text[:300]}"
        except httpx2.HTTPError as error:
            said = f"{type(error).__name__} {error}"
        if said:
            raise EngineError(
                f"{http.base_url}{path} while weights were sent from GPU to GPU: {said}; rollout.server.weights=folder takes the "
                "way over the disk"
            )


@contextmanager
def _callers(urls: Sequence[str]) -> Iterator[Callers]:
    """Connections to all servers, while an update goes on. After an error nobody waits for calls that may never return."""
    threads, clients = (
        ThreadPoolExecutor(len(urls)),
        [httpx2.Client(base_url=url, timeout=None, trust_env=False) for url in urls],
    )
    try:
        yield Callers(clients, threads)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for http in clients:
            http.close()
