"""On one rank: nothing is spread, and the same calls do what they say. On several: `train/test_ranks.py`."""

import torch
from rank_jobs import model

from partita.models.adapters import LoraConfig
from partita.models.lora import add_adapters
from partita.models.parallel import device_kind, follow, full, is_sharded, local, place, settle, shard, twin
from partita.ops.ranks import ALONE


def test_a_model_that_is_alone_stays_as_it_is():
    made = model()
    assert shard(made, ALONE) is made and not is_sharded(made) and made.sharding is None
    settle(made)
    weight = made.lm.get_input_embeddings().weight
    assert full(weight) is weight and local(weight) is weight and device_kind(weight) == "cpu"
    place(weight, torch.ones(weight.shape, dtype=weight.dtype))
    assert bool((weight == 1).all())


def test_a_twin_follows_the_trained_weights_and_shares_the_frozen_ones():
    made = model()
    add_adapters(made, LoraConfig(rank=2), seed=0)
    old = twin(made)
    assert not any(p.requires_grad for p in old.parameters())
    pairs = list(zip(made.named_parameters(), old.parameters(), strict=True))
    assert all((now is then) is not now.requires_grad for (_, now), then in pairs)
    with torch.no_grad():
        for (name, now), _ in pairs:
            if "lora_B" in name:
                now += 1
    assert any(not torch.equal(now, then) for (_, now), then in pairs)
    follow(old, made)
    assert all(torch.equal(now, then) for (_, now), then in pairs)
