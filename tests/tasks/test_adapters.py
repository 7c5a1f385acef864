"""Functions written for other tools: which way of calling them their parameters mean, and what they are given."""

import asyncio
import dataclasses

import pytest
from scoring import prompt_of, score, score_groups

from partita.records import Prompt
from partita.tasks.adapters import STYLES, style_of
from partita.tasks.dataset import TaskRow
from partita.tasks.reward import (
    FunctionOptions,
    RewardConfig,
    RewardRuntime,
    RewardSetupError,
    Scored,
    TrainerState,
)

ROW = {"question": "6*7?", "answer": "work\n#### 42", "nums": [6, 7], "level": 3}
PROMPT = Prompt("1", (1, 2, 3), "<user>6*7?<assistant>", ROW, ({"role": "user", "content": "6*7?"},), "42")


@pytest.mark.parametrize(
    ("names", "style"),
    [
        ("response answer", "partita"),
        ("completion kwargs", "partita"),
        ("messages stop_reason", "partita"),
        ("prompt row", "partita"),
        ("completions kwargs", "trl"),
        ("completion_ids kwargs", "trl"),
        ("prompts completions completion_ids answer", "trl"),
        ("completions labels", "trl"),
        ("completions queries", "trl"),
        ("prompts kwargs", "trl"),
        ("data_source solution_str ground_truth extra_info", "verl"),
        ("solution_str ground_truth", "verl"),
        ("prompt completions prompt_ids completion_ids answer kwargs", "areal"),
        ("queries prompts labels", "openrlhf"),
        ("queries prompts", "openrlhf"),
        ("queries prompts labels kwargs", "openrlhf"),
    ],
)
def test_the_names_of_parameters_say_which_tool_a_function_was_written_for(names, style):
    assert style_of("f", names.split(), "auto") is STYLES[style]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("response completions", "trl or partita"),
        ("queries prompts completions", "openrlhf or trl"),
        ("solution_str completions", "verl or trl"),
        ("completion solution_str", "verl or partita"),
        ("prompt completions prompt_ids completion_ids response", "areal or partita"),
    ],
)
def test_where_two_tools_fit_both_are_named_and_the_key_that_decides(names, words):
    with pytest.raises(RewardSetupError, match=rf"'f' .*{words} does; say which: reward.options.f.style="):
        style_of("f", names.split(), "auto")
    assert style_of("f", names.split(), "partita") is STYLES["partita"]


def test_a_style_that_is_named_wins():
    def unusual(q, a, q_ids, a_ids, level):
        assert (q, a, q_ids, a_ids, level) == (PROMPT.text, "42", [1, 2, 3], [0, 1, 2, 3], 3)
        return 1.0

    (found,) = score([unusual], PROMPT, ["42"], options={"unusual": FunctionOptions(style="areal")})
    assert found == Scored(1.0, {"unusual": 1.0})


def test_the_start_of_a_run_tells_how_functions_are_called():
    def trl(completions, **kwargs):
        return [0.0 for _ in completions]

    def verl(solution_str, ground_truth, strict=True):
        return 0.0

    def rlhf(queries, prompts, labels):
        return [0.0 for _ in queries]

    def own(response):
        return 0.0

    runtime = RewardRuntime(RewardConfig(), [trl, verl, rlhf, own])
    notes = runtime.check(TaskRow("1", PROMPT.messages, None, {"ground_truth": "42"}))
    runtime.close()
    assert notes == (
        "reward function 'trl' is called as TRL does: completions and columns in lists, all responses to a prompt together",
        "reward function 'verl' is called as verl does: one solution_str with its ground_truth",
        "reward function 'rlhf' is called as OpenRLHF does: queries, prompts and labels in lists, all responses to a prompt "
        "together",
        "reward function 'verl': no column 'strict', its default is used",
        "reward function 'rlhf': labels are empty, as the data have no gold answer",
    )


def test_trl_gets_lists_by_keyword():
    def everything(prompts, completions, completion_ids, answer, nums, trainer_state, **kwargs):
        assert prompts == ["<user>6*7?<assistant>"] * 3 and completions == ["a", "b", "c"]
        assert completion_ids == [[0, 1, 2, 3]] * 3
        assert answer == ["work\n#### 42"] * 3  # the column as it is
        assert nums == [[6, 7]] * 3 and nums[0] is not nums[1]
        assert kwargs == {"question": ["6*7?"] * 3, "level": [3] * 3}
        assert (trainer_state.global_step, trainer_state.max_steps) == (0, 0)
        return [1.0, 2.0, None]

    found = score([everything], PROMPT, ["a", "b", "c"])
    assert [one.reward for one in found] == [1.0, 2.0, None]
    assert [one.status for one in found] == ["ok", "ok", "not_applicable"]


def test_trl_gets_messages_where_the_row_has_messages():
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6*7?"}]

    def shown(prompts, completions):
        assert prompts == [talk] and completions == [[{"role": "assistant", "content": "42"}]]
        return [1.0]

    instructed = (talk[0], {"role": "user", "content": "6*7?\nUse a box."})

    def told(prompts, completions):
        assert prompts[0][1]["content"] == "6*7?\nUse a box." and completions[0][0]["content"] == "42"
        return [1.0]

    assert score([shown], prompt_of({"prompt": talk}), ["42"])[0].reward == 1.0
    assert score([told], Prompt("1", (1,), "x", {"prompt": talk}, instructed), ["42"])[0].reward == 1.0
    struct = {"prompt": {"role": ["system", "user"], "content": ["Be brief.", "6*7?"]}}
    assert score([shown], Prompt("1", (1,), "x", struct, tuple(talk)), ["42"])[0].reward == 1.0


def test_other_conversations_of_a_row_do_not_make_its_prompt_one():
    def texts(prompts, completions, messages):
        assert prompts == ["<user>6*7?<assistant>"] and completions == ["42"]
        return [1.0]

    said = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": "It is 42"}]
    row = {"prompt": "6*7?", "messages": said}
    assert score([texts], Prompt("1", (1,), PROMPT.text, row, PROMPT.messages), ["42"])[0].reward == 1.0


def test_trl_functions_may_tell_metrics_and_columns():
    def told(completions, log_metric, log_extra):
        log_metric("length", sum(map(len, completions)) / len(completions))
        log_extra("first", [c[0] for c in completions])
        return [1.0] * len(completions)

    first, second = score([told], PROMPT, ["ab", "cdef"])
    assert first.parts == {"told": 1.0, "told/length": 3.0} == second.parts
    assert (first.notes, second.notes) == ({"told/first": "a"}, {"told/first": "c"})


def test_trl_functions_know_how_far_the_training_is():
    def late(completions, trainer_state):
        return [float(trainer_state.global_step * 100 + trainer_state.max_steps)] * len(completions)

    runtime = RewardRuntime(RewardConfig(), [late])
    runtime.follow(lambda: TrainerState(3, 25))
    ((found,),) = score_groups(runtime, [(PROMPT, ["a"])])
    runtime.close()
    assert found.reward == 325.0


def test_trl_functions_may_be_awaited():
    async def late(completions, **kwargs):
        return [float(len(c)) for c in completions]

    assert [one.reward for one in score([late], PROMPT, ["a", "bb"])] == [1.0, 2.0]


def test_verl_gets_one_solution_and_the_gold_as_it_is_stored():
    def compute_score(data_source, solution_str, ground_truth, extra_info, **kwargs):
        assert (data_source, solution_str) == ("lab", "42") and not kwargs
        assert ground_truth == ' {"value": 42} ' and extra_info == {"index": "x-1"}
        return True

    row = {"data_source": "lab", "reward_model": {"ground_truth": ' {"value": 42} '}, "extra_info": {"index": "x-1"}}
    assert score([compute_score], Prompt("1", (1,), "x", row, (), "42"), ["42"])[0].reward == 1.0


def test_verl_gold_may_be_a_column_or_the_gold_answer():
    def compute_score(solution_str, ground_truth, extra_info):
        assert extra_info == {}
        return float(ground_truth)

    for row, gold in (({"ground_truth": 7}, 7.0), ({"reward_model": {"style": "rule"}}, 42.0)):
        assert score([compute_score], Prompt("1", (1,), "x", row, (), "42"), ["x"])[0].reward == gold


def test_verl_without_what_it_must_have_is_found_before_anything_is_sampled():
    def compute_score(data_source, solution_str, ground_truth):
        return 0.0

    runtime = RewardRuntime(RewardConfig(), [compute_score])
    with pytest.raises(RewardSetupError, match=r"as verl does.* asks for 'data_source', which the data do not have"):
        runtime.check(TaskRow("1", (), None, {"reward_model": {"ground_truth": "1"}}))
    with pytest.raises(RewardSetupError, match="asks for 'ground_truth'"):
        runtime.check(TaskRow("1", (), None, {"data_source": "lab"}))
    runtime.close()


def test_areal_gets_four_values_by_place_and_the_row_by_name():
    def reward(prompt, completions, prompt_ids, completion_ids, nums, **data):
        assert (prompt, completions, prompt_ids, completion_ids) == (PROMPT.text, "42", [1, 2, 3], [0, 1, 2, 3])
        assert nums == [6, 7] and data == {"question": "6*7?", "answer": "work\n#### 42", "level": 3}
        return 1

    assert score([reward], PROMPT, ["42"])[0].reward == 1.0
    templated = dataclasses.replace(PROMPT, row={**ROW, "prompt": "6*7?"})  # of two prompts the rendered one is given
    assert score([reward], templated, ["42"])[0].reward == 1.0


def test_openrlhf_gets_whole_texts_prompts_and_gold_answers():
    def reward_func(queries, prompts, labels, **kwargs):
        assert prompts == [PROMPT.text] * 2 and labels == ["42"] * 2 and not kwargs
        return {"rewards": [float(q[len(p) :] == label) for q, p, label in zip(queries, prompts, labels, strict=True)]}

    assert [one.reward for one in score([reward_func], PROMPT, ["42", "41"])] == [1.0, 0.0]


def test_a_function_with_too_few_places_is_refused():
    def narrow(queries, prompts):
        return [0.0]

    with pytest.raises(
        RewardSetupError, match="'narrow' is called with queries, prompts, labels by place, and takes 2"
    ):
        RewardRuntime(RewardConfig(), [narrow])


@pytest.mark.parametrize(("returned", "got"), [([1.0], "1 value"), ([1.0] * 5, "5 values")])
def test_a_list_of_another_length_is_an_error_of_the_whole_group(returned, got):
    def short(completions, **kwargs):
        return returned

    found = score([short], PROMPT, list("abcdef"))
    assert [one.status for one in found] == ["reward_error"] * 6
    assert {one.error for one in found} == {f"short: returned {got} for 6 responses"}


def test_a_failing_group_takes_no_other_with_it():
    def picky(completions, question, **kwargs):
        if question[0] == "bad":
            raise ValueError("no reading of bad")
        return [float(len(completions))] * len(completions)

    runtime = RewardRuntime(RewardConfig(processes=2), [picky])
    rows = [{"question": "good"}, {"question": "bad"}, {"question": "good"}]
    prompts = [Prompt(f"p{i}", (1,), "x", row) for i, row in enumerate(rows)]
    found = score_groups(runtime, list(zip(prompts, (["a", "b"], ["c", "d"], ["e", "f", "g"]), strict=True)))
    runtime.close()
    assert [[one.reward for one in group] for group in found] == [[2.0, 2.0], [None, None], [3.0, 3.0, 3.0]]
    assert found[1][0].error.startswith("picky: ValueError: no reading of bad\nTraceback")


def test_groups_of_one_prompt_are_two_calls():
    def size(completions, **kwargs):
        return [float(len(completions))] * len(completions)

    runtime = RewardRuntime(RewardConfig(processes=1), [size])
    found = score_groups(runtime, [(PROMPT, ["a", "b"]), (PROMPT, ["c", "d", "e"])])
    runtime.close()
    assert [[one.reward for one in group] for group in found] == [[2.0] * 2, [3.0] * 3]


def test_one_by_one_makes_lists_of_one():
    def first_only(queries, prompts, labels):
        return float(len(queries[0]) - len(prompts[0]))

    options = {"first_only": FunctionOptions(one_by_one=True)}
    assert [one.reward for one in score([first_only], PROMPT, ["a", "bb"], options=options)] == [1.0, 2.0]
    assert "expected a list of 2 values" in score([first_only], PROMPT, ["a", "bb"])[0].error


def test_one_answer_that_is_scored_alone_is_a_group_of_one():
    def size(completions, **kwargs):
        return [float(len(completions))]

    runtime = RewardRuntime(RewardConfig(), [size])
    found = asyncio.run(runtime.score(PROMPT, "a", (1,), "stop"))
    runtime.close()
    assert found.reward == 1.0


def test_a_group_that_hangs_is_given_up_and_the_others_are_scored():
    def wild(completions, question, **kwargs):
        while question[0] == "hang":
            pass
        return [1.0] * len(completions)

    runtime = RewardRuntime(RewardConfig(processes=2, timeout_seconds=0.5), [wild])
    prompts = [Prompt(str(i), (1,), "x", {"question": q}) for i, q in enumerate(("hang", "go"))]
    found = score_groups(runtime, [(prompt, ["a", "b"]) for prompt in prompts])
    runtime.close()
    assert [one.error for one in found[0]] == ["wild: no result within 0.5 seconds (reward.timeout_seconds)"] * 2
    assert [one.reward for one in found[1]] == [1.0, 1.0]
