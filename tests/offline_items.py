"""What the tests of training on data share: tiny models, items of a few tokens, learners, and gradients as they were taken."""

from collections.abc import Sequence

import torch
from torch import Tensor

from partita.models.attention import ATTENTION, register
from partita.models.families import tiny
from partita.models.packed import PackedModel
from partita.records import Row
from partita.report.metrics import Timer
from partita.train.config import OptimizerConfig
from partita.train.offline import Item, Objective, OfflineLearner, Reference
from partita.train.stepper import Stepper


def model_of(seed: int = 0, head: bool = False) -> PackedModel:
    """A Llama of two layers in float32, with a random value head if asked for."""
    register()
    torch.manual_seed(seed)
    lm = tiny("Llama", torch.float32)
    lm.set_attn_implementation(ATTENTION)
    model = PackedModel(lm)
    if head:
        model.add_value_head()
        assert model.value_head is not None
        torch.nn.init.normal_(model.value_head.weight, std=0.3)
    return model


def row(question: Sequence[int], answer: Sequence[int]) -> Row:
    """A question and an answer that is learned."""
    ids = [*question, *answer]
    return Row(ids, [False] * len(question) + [True] * len(answer), [0.0] * len(ids), [-1] * len(ids))


def pair(uid: str, question: Sequence[int], chosen: Sequence[int], rejected: Sequence[int], margin=None) -> Item:
    """A preference."""
    return Item(uid, ((row(question, chosen),), (row(question, rejected),)), margin=margin)


PAIRS = [
    pair("a", [3, 9], [4, 5, 2], [7, 2]),
    pair("b", [8, 8, 8, 8], [11, 2], [12, 13, 14, 15, 16, 17, 2], margin=1.5),
    pair("c", [5], [6, 6, 6, 6, 2], [6, 6, 9, 2], margin=0.25),
    pair("d", [20, 21, 22], [23, 2], [24, 25, 2]),
]
CONVERSATIONS = [
    Item("a", ((row([3, 9], [4, 5, 2]),),)),
    Item(
        "b", ((row([8, 8, 8, 8], [11, 2]), row([8, 8, 11, 30], [31, 32, 33, 2])),)
    ),  # in two rows, as some templates need
    Item("c", ((row([5], [6, 6, 6, 6, 6, 6, 6, 2]),),)),
]
JUDGED = [
    Item("a", ((row([3, 9], [4, 5, 2]),),), ((row([3, 9], [11, 2]),),), good=True),
    Item("b", ((row([8, 8, 8], [11, 2]),),), ((row([8, 8, 8], [6, 6, 2]),),), good=False),
    Item("c", ((row([5], [6, 6, 2]),),), ((row([5], [4, 5, 2]),),), good=True),
]


def learner_of(
    model: torch.nn.Module, objective: Objective, budget: int = 4096, reference: Reference | None = None,
    dtype: torch.dtype = torch.float32, **optimizer: float | None,
) -> OfflineLearner:  # fmt: skip
    """A learner whose steps are large enough to be seen and smooth enough to be compared."""
    given = {"lr": 0.01, "eps": 1e-3, "gradient_clipping": None} | optimizer
    timer = Timer()
    stepper = Stepper(model, OptimizerConfig(**given), dtype, 3, timer)
    return OfflineLearner(model, objective, stepper, budget, reference, timer)


def watched(model: torch.nn.Module) -> dict[str, Tensor]:
    """Gradients by parameter, summed over all backward passes from now on."""
    seen = dict[str, Tensor]()
    for name, p in model.named_parameters():
        if p.requires_grad:
            p.register_hook(lambda grad, name=name: seen.__setitem__(name, seen.get(name, 0) + grad.clone()))
    return seen


def plain_of(model: PackedModel):
    """The family's own model with the same weights and its own attention: nothing of ours is in its forward."""
    lm = tiny("Llama", torch.float32)
    lm.load_state_dict(model.lm.state_dict())
    return lm


def plain_logprobs(lm, rows: Sequence[Row]) -> Tensor:
    """Log-probs of the trained tokens of a sample, one row after another, each run by itself."""
    found = []
    for one in rows:
        log_TV = lm(torch.tensor([one.ids]), use_cache=False).logits[0].log_softmax(-1)
        found += [log_TV[at - 1, one.ids[at]] for at, trained in enumerate(one.trained) if trained]
    return torch.stack(found)
