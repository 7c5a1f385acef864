"""What `scheduler`, `allocation` and `cluster` refuse, and what other tools' names are answered with."""

import pytest

from partita.config import ConfigError, load_config
from partita.offline.config import DpoConfig, SftConfig
from partita.run import load_run_config
from partita.trainer import QUICKSTART


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cluster.n_nodes=2"], r"cluster\.n_nodes: unknown key\. Near: nodes \(int, default 1\)"),
        (["cluster.n_gpus_per_node=8"], r"unknown key\. GPUs are given to roles.*allocation\.learner\.gpus"),
        (["allocation_mode=sglang:d4p1t1+d4p1t1"], r"unknown key\. Say it in numbers: allocation\.learners"),
        (["cluster.fileroot=/tmp"], r"unknown key\. Near: output_dir"),
        (["scheduler.type=rya"], r"scheduler\.type: expected one of local, ray, slurm, got \"rya\""),
        (["allocation.learners=0"], r"allocation\.learners: must be >= 1, got 0"),
        (["allocation.servers=-1"], r"allocation\.servers: must be >= 0, got -1"),
        (["allocation.learner.cpus=0"], r"allocation\.learner\.cpus: must be >= 1"),
        (["allocation.learner.gpu=1"], r"allocation\.learner\.gpu: unknown key\. Near: gpus"),
        (["cluster.time=5"], None),
        (["rollout.backend=vllm"], r"rollout\.backend=vllm needs a server: set allocation\.servers=1"),
        (
            ["rollout.servers=[http://h:1]", "allocation.servers=2"],
            r"allocation\.servers=2 and rollout\.servers=.*drop one",
        ),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_loaded(words: list[str], said: str | None) -> None:
    if said is None:
        load_run_config([QUICKSTART], words)
        return
    with pytest.raises(ConfigError, match=said):
        load_run_config([QUICKSTART], words)


def test_training_on_data_has_the_sections_but_no_servers_for_what_samples_nothing() -> None:
    found = load_config(SftConfig, overrides=["allocation.learners=2", "scheduler.type=local"]).value
    assert found.allocation.learners == 2 and found.command == "sft"
    with pytest.raises(ConfigError, match=r"allocation\.servers=1: nothing is sampled here"):
        load_config(SftConfig, overrides=["allocation.servers=1"])
    online = ["ref.log_probs=online", "online.gconfig.n_samples=2"]
    assert load_config(DpoConfig, overrides=[*online, "allocation.servers=1"]).value.allocation.servers == 1
    with pytest.raises(ConfigError, match=r"online\.rollout\.backend=vllm needs a server"):
        load_config(DpoConfig, overrides=[*online, "online.rollout.backend=vllm"])
