"""Every tested family: packed, cached and plain log-probs and gradients equal those of its own forward in float64."""

from pathlib import Path

import pytest
import torch

from partita.models.families import FAMILIES, tiny
from partita.models.packed import PackedModel
from partita.models.quiet import quiet
from partita.models.selfcheck import self_check
from partita.ops.packing import pack
from partita.records import Row

PLAIN = {
    "BLOOM: ALiBi",
    "Falcon-H1: Mamba-2 beside attention",
    "Jamba: Mamba and attention layers",
    "Qwen3-Next: gated delta rule",
}
# These compute a softmax, a router or a recurrence in float32 even in a float64 model.
ROUNDING = PLAIN | {"Gemma 2: soft-caps, sliding window", "DeepSeek-V3: latent attention, experts"}
# The RMS norms of the other families pass float32 gradients: a shared prefix sums them in another order.
EXACT = {"GPT-2: learned positions", "GPT-NeoX (Pythia)"}


@pytest.fixture(scope="module")
def checked():
    """Family -> (model, verdict), made when first asked for."""
    made = {}

    def get(title):
        if title not in made:
            lm = tiny(title)
            with quiet():
                made[title] = (lm, self_check(lm))
        return made[title]

    return get


@pytest.mark.parametrize("title", FAMILIES)
def test_log_probs_equal_the_family_s_own(title, checked):
    _, verdict = checked(title)
    assert verdict.kind == ("plain" if title in PLAIN else "packed")
    assert verdict.known_head
    assert verdict.difference < (1e-5 if title in ROUNDING else 1e-9)


@pytest.mark.parametrize("title", FAMILIES)
def test_gradients_equal_the_family_s_own(title, checked):
    lm, verdict = checked(title)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 96, (3, 17), generator=generator).tolist()
    rows = [ids[0], [*ids[0][:9], *ids[1][9:14]], ids[2][:11]]  # two behind a shared prefix, one of its own
    push = torch.randn(sum(len(row) for row in rows) - 3, generator=generator, dtype=torch.float64)
    model = PackedModel(lm, kind=verdict.kind, padded=verdict.padded)
    samples = [[Row(row, [i > 0 for i in range(len(row))], [0.0] * len(row), [0] * len(row))] for row in rows]
    ours = gradients(lm, model(pack(samples, [0, 0, 1]), temperature=0.7).logprobs_T @ push)
    own = tiny(title)
    logits = [own(input_ids=torch.tensor([row]), use_cache=False).logits[0, :-1] / 0.7 for row in rows]
    next_T = torch.tensor([token for row in rows for token in row[1:]])
    truth = gradients(own, torch.cat(logits).log_softmax(-1).gather(1, next_T[:, None])[:, 0] @ push)
    scale = max(g.abs().max() for g in truth)
    for mine, theirs in zip(ours, truth, strict=True):
        assert (mine - theirs).abs().max() < (1e-12 if title in EXACT else 1e-5) * scale


def gradients(lm, loss):
    grads = torch.autograd.grad(loss, list(lm.parameters()), allow_unused=True)
    return [torch.zeros(1) if g is None else g for g in grads]


@pytest.mark.parametrize(
    ("title", "padded"),
    [
        ("Qwen3", True),
        ("Qwen3", False),
        ("GPT-2: learned positions", True),
        ("Gemma 2: soft-caps, sliding window", False),
    ],
)
def test_the_plain_way_is_right_where_the_packed_one_would_do(title, padded):
    lm = tiny(title)
    model = PackedModel(lm, kind="plain", padded=padded)
    prompts = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 2, 1], [4, 4, 4]]  # padded on the left to 9: positions must not shift
    more = [[11, 12], [13, 14], [15, 16]]
    logits_BV, state = model.plain_prefill(prompts)
    steps = [logits_BV, *(model.plain_step(state, [m[t] for m in more]) for t in range(2))]
    for b, prompt in enumerate(prompts):
        with torch.no_grad():
            truth_LV = lm(input_ids=torch.tensor([prompt + more[b]]), use_cache=False).logits[0]
        for t, logits in enumerate(steps):
            assert (logits[b] - truth_LV[len(prompt) - 1 + t]).abs().max() < 1e-6


class Blind:
    """A model's configuration as a layer sees it that was told of no window."""

    sliding_window = None

    def __init__(self, config):
        self._config = config

    def __getattr__(self, name):
        return getattr(self._config, name)


@pytest.mark.parametrize(("window", "word"), [(6, "off by"), (100, "ask for sliding windows")])
def test_a_window_that_does_not_reach_our_attention_is_noticed(window, word):
    lm = tiny("Mistral, sliding window")
    lm.config.sliding_window = window  # 100 is longer than the probe's rows: only the layers' requests can tell
    for layer in lm.model.layers:
        layer.self_attn.config = Blind(lm.config)
    verdict = self_check(lm)
    assert verdict.kind == "plain"
    assert word in verdict.notes[0]


def test_layers_that_do_not_call_our_attention_are_noticed():
    lm = tiny("Llama")
    stubborn = type(lm.config)(**lm.config.to_dict())
    stubborn._attn_implementation = "sdpa"
    lm.model.layers[1].self_attn.config = stubborn
    verdict = self_check(lm)
    assert verdict.kind == "plain"
    assert "off by" in verdict.notes[0]


def test_an_unknown_head_is_left_to_the_family():
    lm = tiny("Llama")
    lm.register_forward_hook(lambda _m, _i, out: type(out)(logits=out.logits * 1.5, cache=out.cache))
    verdict = self_check(lm)
    assert (verdict.kind, verdict.known_head) == ("plain", False)
    model = PackedModel(lm, kind="plain", known_head=False)
    row = Row([3, 4, 5], [False, True, True], [0.0] * 3, [0] * 3)
    truth = lm(input_ids=torch.tensor([[3, 4, 5]])).logits[0].log_softmax(-1)
    ours = model(pack([[row]], [0]), temperature=1.0).logprobs_T
    assert torch.allclose(ours, torch.stack([truth[0, 4], truth[1, 5]]), atol=1e-12)


def test_the_docs_page_says_of_every_family_what_is_tested_here():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    for title in FAMILIES:
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {title} |")]
        assert ("| plain" in line) == (title in PLAIN)
        assert ("| fast |" in line) == (title not in PLAIN)
