"""All golden cases through the product; the same cases in other layouts; and that a wrong, foreign or silent case fails."""

import json
import random
from pathlib import Path

import conformance
import pytest
from conforming.case import KINDS

FOLDER = Path(__file__).parent / "golden"
PATHS = sorted(FOLDER.glob("*.json"))
CASES = {path.stem: json.loads(path.read_text()) for path in PATHS}
MASKED = [name for name, case in CASES.items() if "mask" in case["inputs"]]
ROWS = [name for name in CASES if name in MASKED or "rewards" in CASES[name]["inputs"]]


def wrongs(case, folder):
    path = folder / "case.json"
    path.write_text(json.dumps(case))
    return conformance.judge(path)[1]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_golden(path):
    assert conformance.judge(path) == (path.stem, [])


def test_all_golden_cases_are_here():
    assert len(PATHS) == 100
    assert {case["kind"] for case in CASES.values()} == set(KINDS)


def moved(value, size, place, fill):
    """Every [rows, width] array of a nested value with its columns moved; what was padding is dropped."""
    rows, width = size
    if isinstance(value, dict):
        return {name: moved(item, size, place, fill) for name, item in value.items()}
    is_matrix = isinstance(value, list) and len(value) == rows and all(isinstance(row, list) for row in value)
    if not is_matrix or any(len(row) != width for row in value):
        return value
    out = []
    for row, places in zip(value, place, strict=True):
        new = [fill() for _ in range(places["width"])]
        for old, to in places["to"].items():
            new[to] = row[old]
        out.append(new)
    return out


def relaid(case, rng):
    """The case with its tokens elsewhere in wider rows, in the same order, and other things in the padding."""
    mask = case["inputs"]["mask"]
    size = (len(mask), len(mask[0]))
    width = size[1] + rng.randint(1, 4)
    place = []
    for row in mask:
        side = rng.choice(("left", "right", "between"))
        tokens = [column for column, member in enumerate(row) if member]
        free = {
            "left": range(width - len(tokens), width),
            "right": range(len(tokens)),
            "between": sorted(rng.sample(range(width), len(tokens))),
        }[side]
        place.append({"width": width, "to": dict(zip(tokens, free, strict=True))})

    def junk():
        return rng.choice(["nan", "inf", "-inf", 9.0, -1e9])

    inputs = moved(case["inputs"], size, place, junk) | {"mask": moved(mask, size, place, lambda: 0)}
    if "versions" in inputs:
        inputs["versions"] = moved(case["inputs"]["versions"], size, place, lambda: -1)
    if "step_rewards" in inputs:
        steps = case["inputs"]["step_rewards"]
        inputs["step_rewards"] = [
            [[places["to"][end], reward] for end, reward in row] for row, places in zip(steps, place, strict=True)
        ]
    return case | {"inputs": inputs, "expected": moved(case["expected"], size, place, lambda: 0.0)}


@pytest.mark.parametrize("name", MASKED)
def test_padding_may_stand_anywhere_and_hold_anything(name, tmp_path):
    assert wrongs(relaid(CASES[name], random.Random(name)), tmp_path) == []


def permuted(value, order):
    if isinstance(value, dict):
        return {name: permuted(item, order) for name, item in value.items()}
    return [value[row] for row in order] if isinstance(value, list) and len(value) == len(order) else value


@pytest.mark.parametrize("name", ROWS)
def test_rows_may_come_in_any_order(name, tmp_path):
    case = CASES[name]
    inputs = dict(case["inputs"])
    order = list(range(len(inputs.get("mask", inputs.get("rewards")))))
    random.Random(name).shuffle(order)
    micro_batches = [[order.index(row) for row in rows] for rows in inputs.pop("micro_batches", [])]
    inputs = permuted(inputs, order) | ({"micro_batches": micro_batches} if micro_batches else {})
    assert wrongs(case | {"inputs": inputs, "expected": permuted(case["expected"], order)}, tmp_path) == []


def off(value):
    """One number of a nested value changed; everything else as it was."""
    if isinstance(value, dict):
        last = list(value)[-1]
        return value | {last: off(value[last])}
    if isinstance(value, list):
        index = next(index for index in reversed(range(len(value))) if has_number(value[index]))
        return [off(item) if place == index else item for place, item in enumerate(value)]
    return not value if isinstance(value, bool) else value + 1e-4 * max(1.0, abs(value))


def has_number(value):
    if isinstance(value, list | dict):
        return any(map(has_number, value.values() if isinstance(value, dict) else value))
    return isinstance(value, bool | int | float)


@pytest.mark.parametrize("name", CASES)
def test_one_wrong_number_in_a_field_is_found(name, tmp_path):
    case = CASES[name]
    expected = {field: off(value) for field, value in case["expected"].items()}
    found = wrongs(case | {"expected": expected}, tmp_path)
    assert len(found) == len(expected)
    for field, line in zip(expected, found, strict=True):
        assert line.startswith(field) and "expected" in line and "max error" in line


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "loss_of_memory"}, "unknown kind 'loss_of_memory'; known: advantage,"),
        ({"config": {"loss": "ppo_clipp"}}, "config.loss 'ppo_clipp' is not known; choices: reinforce, ppo_clip,"),
        ({"config": {"eps_lower": 0.1}}, "config.eps_lower is not understood"),
        ({"inputs": {"log_probs": [1.0]}}, "inputs.log_probs is not understood"),
        ({"expected": {"lossy": 1.0}}, "expected.lossy: neither a field nor a variant that is known"),
        ({"expected": {"loss": "undefined"}}, "loss: expected undefined, got 0.503"),
        ({"expected": {"loss": [0.5035]}}, "loss: expected 1 values, got 0.503"),
        ({"expected": {"loss": "nan"}}, "loss: expected nan, got 0.503"),
        ({"tolerance": 1e-18}, "max error"),
    ],
)
def test_what_is_not_known_is_a_failure(change, says, tmp_path):
    case = CASES["loss_ppo_clip_token_mean"]
    change = {name: case[name] | value if isinstance(value, dict) else value for name, value in change.items()}
    found = wrongs(case | change, tmp_path)
    assert found and any(says in line for line in found), found


def test_a_length_penalty_without_a_window_is_a_step_above_the_limit(tmp_path):
    case = CASES["reward_soft_overlong"]
    inputs, config = {"lengths": [0, 99, 100, 101, 150]}, {"l_max": 100, "l_cache": 0, "factor": 0.5}
    step = {"penalty": [0.0, 0.0, 0.0, -0.5, -0.5]}
    assert wrongs(case | {"inputs": inputs, "config": config, "expected": step}, tmp_path) == []


def test_an_open_band_of_weights_and_no_cap_are_the_same(tmp_path):
    free, band = CASES["offpolicy_decoupled_ppo_nocap"], CASES["offpolicy_icepop_05_5"]
    config = band["config"] | {"low": 0.0, "high": "inf"}
    assert wrongs(band | {"config": config, "expected": free["expected"]}, tmp_path) == []


def test_log_ratios_are_held_where_the_case_says(tmp_path):
    case = CASES["numeric_extreme_log_ratio"]
    config = case["config"] | {"log_ratio_clamp": 2.0}
    held = {"plain": {"loss": (-1.2 - 0.1353352832 - 1 + 7.3890560989 + 0.8) / 6}}
    assert wrongs(case | {"config": config, "expected": held}, tmp_path) == []
    assert wrongs(case, tmp_path) == []  # and nowhere else afterwards


def test_a_refusal_is_what_undefined_asks_for(tmp_path):
    case = CASES["metric_pass_at_k"]
    assert wrongs(case, tmp_path) == []
    more = case | {"inputs": {"n": [2], "c": [1]}, "config": {"k": [1, 3]}, "expected": {"pass_at_k": [[0.5, 0.75]]}}
    assert wrongs(more, tmp_path) == ["pass_at_k[0][1]: expected 0.75, got undefined (max error inf)"]


def test_the_command_counts_and_says_what_failed(tmp_path, capsys):
    good, bad = CASES["agg_modes"], CASES["agg_modes"] | {"name": "bad", "kind": "lost"}
    (tmp_path / "a.json").write_text(json.dumps(good))
    assert conformance.main([str(tmp_path)]) == 0
    (tmp_path / "b.json").write_text(json.dumps(bad))
    (tmp_path / "c.json").write_text("{")
    assert conformance.main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["ok agg_modes", "1 passed, 0 failed", "ok agg_modes"]
    assert lines[3].startswith("FAIL b: unknown kind 'lost'") and lines[4].startswith("FAIL c: not JSON")
    assert lines[5] == "1 passed, 2 failed"


def test_a_folder_without_cases_is_no_success(tmp_path, capsys):
    assert conformance.main([str(tmp_path)]) == 1
    assert "no JSON files" in capsys.readouterr().err


def test_tolerance_is_absolute_below_one_and_relative_above(tmp_path):
    case = CASES["agg_modes"]

    def with_loss(value):
        return case | {"expected": {"token_mean": value}}

    assert wrongs(with_loss(5.5 + 5e-6), tmp_path) == []
    assert len(wrongs(with_loss(5.5 + 6e-6), tmp_path)) == 1
    small = case | {"inputs": case["inputs"] | {"per_token_loss": [[0.1] * 4] * 4}}
    assert wrongs(small | {"expected": {"token_mean": 0.1 + 9e-7}}, tmp_path) == []
    assert len(wrongs(small | {"expected": {"token_mean": 0.1 + 1.1e-6}}, tmp_path)) == 1
