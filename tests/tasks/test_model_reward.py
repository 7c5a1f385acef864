"""Real tiny reward models as rewards: what they read, what they give, and what becomes of failures."""

import asyncio
import copy
import threading
import time

import pytest
import torch
from tiny_model import byte_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

from partita.models.quiet import quiet
from partita.models.scoring import ScoreStats, load_scorer
from partita.records import Prompt
from partita.tasks.binding import RewardSetupError
from partita.tasks.model_reward import ModelReward
from partita.tasks.reward import Answer, RewardConfig, RewardRuntime, Scored

MESSAGES = ({"role": "user", "content": "six times seven"},)
POLICY = byte_tokenizer()
EOS = POLICY.eos_token_id
WORDS = ["<pad>", "six", "times", "seven", "is", "forty", "two", "<|user|>", "<|assistant|>", "<end>", "<unk>"]
WORD_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <end>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def word_tokenizer(template=WORD_TEMPLATE):
    """Another vocabulary, another template, and another padding (id 7) than the policy's (its end of text)."""
    order = [*WORDS[1:8], WORDS[0], *WORDS[8:]]
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(order)}, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", chat_template=template)
    assert made.pad_token_id == 7
    return made


def ending_with_a_break():
    """The policy's tokenizer with a template that breaks the line after every message."""
    made = copy.deepcopy(POLICY)
    made.chat_template = made.chat_template.replace("<eos>", "<eos>\n")
    return made


def saved(folder, tokenizer):
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(3)
        config = LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3, num_labels=1,
            pad_token_id=tokenizer.pad_token_id, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        LlamaForSequenceClassification(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def folder(tmp_path):
    return saved(tmp_path / "own", POLICY)


@pytest.fixture
def other(tmp_path):
    return saved(tmp_path / "other", word_tokenizer())


def prompt(tokenizer=POLICY, messages=MESSAGES, **options):
    ids = tokenizer.apply_chat_template(
        list(messages), tokenize=True, add_generation_prompt=True, return_dict=False, **options
    )
    return Prompt("1", tuple(ids), tokenizer.decode(ids), {}, messages)


def encoded(text, tokenizer=POLICY):
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def answer(text="forty two", ids=None, asked=None):
    return Answer(asked or prompt(), text, tuple([*encoded(text), EOS] if ids is None else ids))


def row(path, given, policy=POLICY):
    judge = ModelReward(load_scorer(path), policy)
    try:
        return judge.row(given)
    finally:
        judge.close()


def score(path, answers, functions=(), **keys):
    """Scores of all answers, asked for at the same time, as episodes do."""
    runtime = RewardRuntime(RewardConfig(model=path, **keys), functions)
    runtime.judge = ModelReward(load_scorer(path), POLICY)

    async def run():
        return await asyncio.gather(*(runtime.score(one.prompt, one.text, one.ids, "stop") for one in answers))

    try:
        return asyncio.run(run())
    finally:
        runtime.close()


def alone(path, ids):
    """By transformers: a batch of one without padding."""
    with quiet(), torch.no_grad():
        hf = LlamaForSequenceClassification.from_pretrained(path)
        hf.config.pad_token_id = None
        return float(hf(input_ids=torch.tensor([ids])).logits)


def test_a_model_of_the_policy_s_own_tokens_reads_the_ids_as_sampled(folder):
    assert row(folder, answer()) == encoded("<|user|>six times seven<eos><|assistant|>forty two<eos>")
    odd = [*prompt().ids, *encoded("fo"), *encoded("rty")]
    assert row(folder, answer("forty", encoded("forty"))) == odd  # cut off: no end is added


def test_what_the_template_puts_after_the_end_is_read_too(tmp_path):
    tokenizer = ending_with_a_break()
    path, asked = saved(tmp_path / "m", tokenizer), prompt(tokenizer)
    rendered = tokenizer.apply_chat_template(
        [*MESSAGES, {"role": "assistant", "content": "42"}], tokenize=True, return_dict=False
    )
    assert tokenizer.decode(rendered).endswith("42<eos>\n")
    assert row(path, answer("42", asked=asked)) == rendered
    assert row(path, answer("42", encoded("42"), asked=asked)) == [*asked.ids, *encoded("42")]


def test_a_policy_asked_in_another_way_has_its_text_rendered_again(folder):
    asked = Prompt("1", tuple(encoded("Q: six times seven A:")), "Q: six times seven A:", {}, MESSAGES)
    expected = encoded("<|user|>six times seven<eos><|assistant|>42<eos>")
    assert row(folder, answer("42", asked=asked)) == expected


def test_a_model_with_more_tokens_than_the_policy_s_still_reads_its_ids(tmp_path):
    more = copy.deepcopy(POLICY)
    more.add_special_tokens({"pad_token": "<|pad|>"})
    path = saved(tmp_path / "m", more)
    assert row(path, answer(ids=[3, EOS])) == [*prompt().ids, 3, EOS]
    fewer = copy.deepcopy(more)
    fewer.add_tokens(["<policy only>"])
    assert row(path, answer(ids=[3, EOS]), fewer)[-2:] != [3, EOS]


def test_another_tokenizer_reads_the_text_in_its_own_template(other):
    """The policy's ids mean other words there, and its padding is another id."""
    ids = encoded("<|user|> six times seven <end><|assistant|> forty two <end>", word_tokenizer())
    assert row(other, answer()) == ids
    texts = ["forty two", "is", "two two two two two two two", ""]
    rows = [encoded(f"<|user|> six times seven <end><|assistant|> {text} <end>", word_tokenizer()) for text in texts]
    truth = [alone(other, ids) for ids in rows]
    assert len({round(one, 3) for one in truth}) == 4
    for some in (texts, texts[::-1], texts[:1]):
        found = score(other, [answer(text) for text in some])
        expected = [truth[texts.index(text)] for text in some]
        assert [one.reward for one in found] == pytest.approx(expected, abs=1e-5)
        assert found[0] == Scored(found[0].reward, {"reward_model": found[0].reward})


def test_a_conversation_keeps_all_of_its_turns(other):
    messages = (*MESSAGES, {"role": "assistant", "content": "two"}, {"role": "user", "content": "is seven"})
    text = "<|user|> six times seven <end><|assistant|> two <end><|user|> is seven <end><|assistant|> six <end>"
    assert row(other, answer("six", asked=prompt(messages=messages))) == encoded(text, word_tokenizer())


def test_without_a_template_texts_follow_each_other(tmp_path):
    path = saved(tmp_path / "m", word_tokenizer(template=None))
    assert row(path, answer("forty two")) == encoded("six times seven\n\nforty two", word_tokenizer())
    bare = Prompt("1", (1, 2), "six times ", {})
    assert row(path, answer("seven", asked=bare)) == encoded("six times seven", word_tokenizer())
    judge = ModelReward(load_scorer(path), POLICY)
    assert "no chat template" in judge.notes[0]
    judge.close()


def test_the_weighted_sum_with_functions(folder):
    def short(response):
        return {"score": 1.0, "length": len(response)}

    (found,) = score(folder, [answer("42")], [short], weights=[2.0], model_weight=0.5)
    truth = alone(folder, row(folder, answer("42")))
    assert found.reward == pytest.approx(2.0 + 0.5 * truth, abs=1e-5)
    assert found.parts == {"short": 1.0, "short/length": 2.0, "reward_model": pytest.approx(truth, abs=1e-5)}
    runtime = RewardRuntime(RewardConfig(model=folder, model_weight=0.5), [short])
    assert (runtime.names, runtime.weights) == (["short", "reward_model"], [1.0, 0.5])
    runtime.close()


def test_equal_answers_get_equal_scores_whatever_waits_beside_them(folder):
    """To the last bit: a resumed run asks at other moments."""
    texts = ["42", "a longer answer than that", "forty two", "4", "x" * 50]
    one_by_one = [score(folder, [answer(text)])[0].reward for text in texts]
    together = score(folder, [answer(text) for text in (*texts[::-1], *texts)])
    assert [one.reward for one in together] == [*one_by_one[::-1], *one_by_one]


def test_answers_asked_in_one_call_run_together(folder):
    """Their prompts are read once; one that cannot be read takes nothing from the others."""
    asked = prompt(messages=({"role": "user", "content": "two"},))
    given = [answer("4"), answer("x" * 200), answer("42", asked=asked), answer("forty two")]
    judge = ModelReward(load_scorer(folder), POLICY)
    found = asyncio.run(judge.ask(given))
    judge.close()
    read = [i for i in range(4) if i != 1]
    truth = [alone(folder, row(folder, given[i])) for i in read]
    assert [found[i].reward for i in read] == pytest.approx(truth, abs=1e-5)
    assert found[1].reward is None
    assert found[1].error == "238 tokens of prompt and response; it reads 1 to 128"


def test_normalised_scores(tmp_path):
    path = saved(tmp_path / "m", POLICY)
    ScoreStats(1.5, 4.0).write(tmp_path / "m")
    given = answer("42")
    judge = ModelReward(load_scorer(path, normalise=True), POLICY)
    (found,) = asyncio.run(judge.ask([given]))
    judge.close()
    assert found.reward == pytest.approx((alone(path, row(path, given)) - 1.5) / 4.0, abs=1e-5)


class Refusing:
    """What a scorer may do wrong: text "boom" raises, others get `value`."""

    context, tokenizer = 1000, POLICY

    def __init__(self, value):
        self.value = value

    def scores(self, rows, alike):
        if any(POLICY.decode(row).endswith("boom<eos>") for row in rows):
            raise RuntimeError("out of memory")
        return [self.value] * len(rows)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_or_raises_is_an_error_of_that_sample(value):
    runtime = RewardRuntime(RewardConfig(model="m"))
    runtime.judge = ModelReward(Refusing(value), POLICY)

    async def run():
        given = [answer("a"), answer("boom")]
        return [await runtime.score(one.prompt, one.text, one.ids, "stop") for one in given]

    number, raised = asyncio.run(run())
    runtime.close()
    error = f"reward_model: the score is {value}, not a finite number"
    assert number == Scored(None, {}, "reward_error", error)
    assert raised.status == "reward_error"
    assert raised.error.startswith("reward_model: RuntimeError: out of memory\nTraceback")


def test_a_template_that_refuses_the_messages_is_an_error_of_that_sample(tmp_path):
    refusing = word_tokenizer("{{ raise_exception('no tools here') }}")
    (found,) = score(saved(tmp_path / "m", refusing), [answer()])
    assert found.error == "reward_model: its chat template refuses the conversation: no tools here"


def test_the_event_loop_goes_on_while_the_model_runs():
    class Slow(Refusing):
        def scores(self, rows, alike):
            assert threading.current_thread() is not threading.main_thread()
            time.sleep(0.3)
            return super().scores(rows, alike)

    async def run(judge):
        asked = asyncio.create_task(judge.ask([answer()]))
        ticks = 0
        while not asked.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return (await asked)[0].reward, ticks

    judge = ModelReward(Slow(1.0), POLICY)
    reward, ticks = asyncio.run(run(judge))
    judge.close()
    assert reward == 1.0
    assert ticks > 5


def test_a_model_is_enough_and_its_name_is_taken():
    assert RewardRuntime(RewardConfig(model="m")).names == ["reward_model"]
    with pytest.raises(RewardSetupError, match=r"a reward model with reward\.model, or a judge in reward\.judges"):
        RewardRuntime(RewardConfig())

    def reward_model(response):
        return 1.0

    assert RewardRuntime(RewardConfig(), [reward_model]).names == ["reward_model"]
    with pytest.raises(RewardSetupError, match="cannot be called 'reward_model'"):
        RewardRuntime(RewardConfig(model="m"), [reward_model])


def test_a_model_that_nobody_loaded_ends_the_run():
    given = answer()
    with pytest.raises(RewardSetupError, match=r"reward\.model=m was not loaded"):
        asyncio.run(RewardRuntime(RewardConfig(model="m")).score(given.prompt, given.text, given.ids, "stop"))
