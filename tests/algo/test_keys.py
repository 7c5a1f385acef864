"""Names and defaults of the keys that published configurations use."""

from partita.algo.keys import AlgorithmKeys, DynamicSampling, NormConfig


def test_defaults_of_the_actor_keys():
    keys = AlgorithmKeys()
    assert (keys.eps_clip, keys.eps_clip_higher, keys.c_clip) == (0.2, None, None)
    assert (keys.overlong_reward_penalty, keys.overlong_tokens) == (False, None)
    assert keys.importance_sampling_level == "token"
    assert keys.loss_agg_mode == "token_mean"
    assert (keys.reward_norm, keys.adv_norm, keys.dynamic_sampling) == (None, None, None)
    assert (keys.kl_ctl, keys.kl_loss_coef, keys.entropy_coef) == (0.0, 0.0, 0.0)
    assert (keys.reward_bias, keys.reward_scaling, keys.reward_clip) == (0.0, 1.0, None)


def test_defaults_of_a_norm():
    norm = NormConfig()
    assert (norm.mean_level, norm.std_level, norm.mean_leave1out) == ("batch", "batch", False)
    assert (norm.std_unbiased, norm.eps, norm.group_size) == (True, 1e-5, None)


def test_defaults_of_dynamic_sampling():
    sampling = DynamicSampling()
    assert (sampling.filter, sampling.max_batches, sampling.correct_threshold) == ("mixed_outcomes", 10, 1.0)
