"""What servers are asked to serve, and what they are compared with; the engine itself is tested beside its client."""

from pathlib import Path

import pytest
import torch

from partita.engine.servers.api import EngineError
from partita.models.load import load_causal_lm
from partita.run import load_run_config
from partita.run_engine import open_servers, served_by, served_of, weights_folder
from partita.run_models import open_engine
from partita.trainer import QUICKSTART

CPU = torch.device("cpu")
GIVEN = ("rollout.backend=vllm", "rollout.servers=[http://127.0.0.1:1]")


def config_of(model: Path, *words: str):
    return load_run_config([QUICKSTART], [f"actor.path={model}", "rollout.dtype=float32", *GIVEN, *words]).value


def served(model: Path, *words: str):
    config = config_of(model, *words)
    return served_of(config.actor, config.rollout, CPU)


def test_servers_serve_the_models_folder_with_the_context_that_is_asked_for(model_folder):
    made = served(model_folder, "rollout.server.env={VLLM_CPU_KVCACHE_SPACE: 2}", "rollout.server.python=/venv/python")
    assert (made.model, made.context, made.dtype, made.slots) == (str(model_folder), 512, "float32", 64)
    assert (made.python, made.env, made.device, made.apart) == (
        "/venv/python",
        {"VLLM_CPU_KVCACHE_SPACE": "2"},
        "cpu",
        True,
    )
    assert served(model_folder, "rollout.server.context=100").context == 100
    assert served(model_folder, "rollout.server.context=9000").context == 512


def test_adapters_go_alone_where_they_started_at_zero_and_the_newest_policy_samples(model_folder):
    lora = "actor.lora={rank: 4}"
    assert served(model_folder).adapter_rank is None
    assert served(model_folder, lora).adapter_rank == 4
    assert served(model_folder, lora, "rollout.policy=starting").adapter_rank is None
    assert served(model_folder, "actor.lora={rank: 4, init: pissa}").adapter_rank is None


def test_the_engine_is_in_other_processes_where_servers_are_given_or_started(model_folder):
    assert served_by(config_of(model_folder))
    assert not served_by(load_run_config([QUICKSTART], []).value)
    assert served_by(load_run_config([QUICKSTART], ["allocation.servers=1"]).value)
    assert served_by(config_of(model_folder, "rollout.backend=local"))


def test_a_truncated_distribution_is_not_trained_on_by_a_servers_logprobs(model_folder):
    loaded = load_causal_lm(str(model_folder), dtype=torch.float32)
    config = config_of(model_folder, "gconfig.top_p=0.9", "gconfig.allow_truncated_sampling=true")
    with pytest.raises(EngineError, match=r"gconfig.top_p=0.9 with rollout.backend=vllm: .*rollout.backend=local"):
        open_servers(config, loaded, CPU)


def test_servers_that_nobody_started_are_not_waited_for(model_folder, monkeypatch):
    monkeypatch.delenv("PARTITA_LAUNCH", raising=False)
    config = load_run_config([QUICKSTART], [f"actor.path={model_folder}", "allocation.servers=1"]).value
    with pytest.raises(EngineError, match="no launcher has started this process"):
        open_engine(config)


def test_weights_lie_where_the_config_says_by_a_path_that_servers_elsewhere_can_open(
    model_folder, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    made = weights_folder(config_of(model_folder, "rollout.server.weights_folder=shared/weights").rollout)
    assert made.is_absolute() and made.is_dir() and made.parent == (tmp_path / "shared" / "weights").resolve()
