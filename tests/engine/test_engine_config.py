"""The sections `gconfig` and `rollout`."""

import pytest
import torch

from partita.engine.config import GenerationConfig, RolloutConfig, compute_dtype


def test_sampling_joins_the_models_stop_ids_with_the_given_ones():
    sampling = GenerationConfig(max_new_tokens=9, temperature=0.5, stop=("END",), stop_token_ids=(7, 3)).sampling(
        (2, 7)
    )
    assert sampling.stop_ids == (2, 7, 3)
    assert (sampling.max_new_tokens, sampling.temperature, sampling.stop_strings) == (9, 0.5, ("END",))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens=9 is larger than max_new_tokens=8"),
        ({"stop": ("a", "")}, "stop=.* holds an empty string"),
    ],
)
def test_contradictions_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        GenerationConfig(**keys)


@pytest.mark.parametrize("keys", [{"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"min_new_tokens": 2}])
def test_training_on_truncated_samples_must_be_allowed(keys):
    [(name, value)] = keys.items()
    with pytest.raises(ValueError, match=f"{name}={value}: training needs samples of the full softmax"):
        GenerationConfig(**keys).check_training()
    warning = GenerationConfig(**keys, allow_truncated_sampling=True).check_training()
    assert warning is not None and f"{name}={value}" in warning


def test_training_on_greedy_samples_is_refused():
    with pytest.raises(ValueError, match="temperature=0 is greedy"):
        GenerationConfig(temperature=0.0).check_training()
    assert GenerationConfig().check_training() is None


def test_dtype_is_what_was_asked_for_or_what_the_cpu_computes_in():
    cpu = torch.device("cpu")
    assert compute_dtype("float32", cpu) is torch.float32
    assert compute_dtype("bfloat16", cpu) is torch.bfloat16
    assert compute_dtype(RolloutConfig().dtype, cpu) in (torch.bfloat16, torch.float32)


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host:1", "http://:8000", "http://host:80a", "http://host:99999"]
)
def test_what_is_no_address_of_a_server_is_refused(url):
    RolloutConfig(servers=("http://host:8000", "https://host", "http://[::1]:8000"))
    with pytest.raises(ValueError, match="is no address; write it as http://host:port"):
        RolloutConfig(servers=(url,))
