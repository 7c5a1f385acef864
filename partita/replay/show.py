"""A replay as tables for the terminal, as Markdown, and as one JSON document.

Shapes: M trained tokens of a minibatch.
Left out: what is computed (`again`, `others`, `exact`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from partita.algo.penalty import EntropyBonus
from partita.replay.again import Acted, StepAgain
from partita.replay.exact import Exact
from partita.replay.others import Compared, Other, compare, cosine, length_classes
from partita.replay.replay import Replay, token_texts
from partita.report.table import Table
from partita.report.text import clean

ABSENT = "-"


def lines_of(replay: Replay, *, markdown: bool) -> list[str]:
    """Everything that was asked for, to print."""
    tables = list(tables_of(replay))
    return [line for table in tables for line in (table.markdown() if markdown else table.text())][:-1]


def tables_of(replay: Replay) -> Iterator[Table]:
    """What came out again; other algorithms beside it; true gradients; the tokens of a sample."""
    yield _again_table(replay)
    if replay.again.steps:
        yield _steps_table(replay.again.steps)
    if len(replay.told) > 1:
        compared = [compare(replay.told[0], one) for one in replay.computed]
        yield _others_table(replay, compared)
        if len(compared) > 1 and len(compared[0].by_length) > 1:
            yield _length_table(replay, compared)
    if replay.exact is not None:
        yield _exact_table(replay, replay.exact)
    if replay.request.sample is not None:
        yield _sample_table(replay, replay.request.sample)


def document(replay: Replay) -> dict[str, Any]:
    """All numbers: of the step, of every algorithm, and of the tokens of the sample that was asked for."""
    setting, again = replay.saved.setting, replay.again
    _, ranges = length_classes(again.batch)
    found: dict[str, Any] = {
        "run": str(replay.folder), "step": setting.step, "stage": setting.stage, "algorithm": setting.algorithm,
        "controls": setting.controls, "same": not again.wrong,
        "credit": [{"what": one.what, "difference": one.value, "allowed": one.allowed} for one in again.credit],
        "optimizer_steps": [_step_document(one) for one in again.steps],
        "length_classes": ranges,
        "algorithms": [_other_document(replay.told[0], one) for one in replay.told],
    }  # fmt: skip
    if replay.exact is not None:
        found["exact"] = {
            "optimizer_step": replay.exact.number, "weights": replay.exact.weights, "apart": replay.exact.apart,
            "gradients": {name: vars(one) for name, one in replay.exact.gradients.items()},
        }  # fmt: skip
    if replay.request.sample is not None:
        found["sample"] = _sample_document(replay, replay.request.sample)
    return found


def _again_table(replay: Replay) -> Table:
    setting, batch = replay.saved.setting, replay.saved.batch
    rows = tuple((one.what, _number(one.value), _verdict(one.ok)) for one in replay.again.credit)
    rules = [
        f"{rule}: " + ", ".join(f"{name} {value:.6g}" for name, value in state.items() if "/" not in name)
        for rule, state in setting.controls.items()
    ]
    notes = [
        f"{batch.samples} samples, {len(batch.seq_T)} tokens; algorithm {setting.algorithm or 'by keys'}, stage {setting.stage}"
    ]
    title = f"Step {setting.step} of {replay.folder}, credit again"
    return Table(title, ("stream", "largest difference", ""), rows, (*notes, *(f"rule {line}" for line in rules)))


def _steps_table(steps: Sequence[StepAgain]) -> Table:
    head = (
        "optimizer step", "outcome", "samples", "computed", "tokens", "ratio", "held", "loss", "again", "difference", "",
    )  # fmt: skip
    return Table("Optimizer steps again", head, tuple(_step_row(i, one) for i, one in enumerate(steps)))


def _step_row(index: int, one: StepAgain) -> tuple[str, ...]:
    seen, ratio, held = ABSENT, ABSENT, ABSENT
    computed = 0 if one.taken.current is None else len(one.taken.computed)
    if one.acted is not None:
        live_M = one.acted.weight_M != 0
        seen = str(int(live_M.sum()))
        ratio = _number(_mean(one.acted.ratio_M, live_M))
        held = _share(_mean(one.acted.held_M, live_M))
    return (
        str(index + 1), one.taken.outcome, str(len(one.taken.samples)), str(computed), seen, ratio, held,
        f"{one.taken.loss:.9g}", ABSENT if one.loss is None else f"{one.loss:.9g}", _number(one.difference.value),
        _verdict(one.difference.ok),
    )  # fmt: skip


def _others_table(replay: Replay, compared: Sequence[Compared]) -> Table:
    head = ("algorithm", "agreement", "cosine", "held", "mean |A|", "mean |c| correct", "mean |c| incorrect")
    rows = tuple(
        (other.name, _share(one.agreement), _number(one.cosine), _share(one.held), _number(one.advantage),
         _number(one.correct), _number(one.incorrect))
        for other, one in zip(replay.computed, compared, strict=True)
    )  # fmt: skip
    notes = [f"{one.name}: not computed, it needs {', and '.join(one.missing)}" for one in replay.told if one.missing]
    notes += [
        f"{other.name} would have drawn {other.redrawn} of {len(set(other.batch.prompt_S.tolist()))} groups again"
        for other in replay.told
        if other.redrawn
    ]
    notes += [f"{one.name}: c and cosine leave out {beyond}" for one in replay.told if (beyond := _beyond(one))]
    return Table("The same samples by other algorithms", head, rows, tuple(notes))


def _beyond(other: Other) -> str:
    """What moves the policy beside the log-probs of the sampled tokens."""
    if other.algorithm is None:
        return ""
    active = [penalty for penalty in other.algorithm.penalties if penalty.coef != 0]
    found = ["the entropy bonus" for penalty in active if isinstance(penalty, EntropyBonus)]
    found += [
        "the KL over the whole vocabulary" for penalty in active if penalty.needs & {"kl_full_ref", "kl_full_old"}
    ]
    return " and ".join(found)


def _length_table(replay: Replay, compared: Sequence[Compared]) -> Table:
    _, ranges = length_classes(replay.again.batch)
    head = ("algorithm", *(f"{low} to {high} tokens" if low != high else f"{low} tokens" for low, high in ranges))
    rows = tuple(
        (other.name, *map(_number, one.by_length)) for other, one in zip(replay.computed, compared, strict=True)
    )
    title = "What a token counts, by the length of its sample: mean |weight · c| over that of all tokens"
    return Table(title, head, rows)


def _exact_table(replay: Replay, exact: Exact) -> Table:
    rows = list[tuple[str, ...]]()
    base = _acted(replay.told[0], exact.number - 1)
    for other in replay.computed:
        one, acted = exact.gradients[other.name], _acted(other, exact.number - 1)
        guess = None if base is None or acted is None else cosine(acted.pull_M, base.pull_M)
        rows.append((other.name, _number(one.norm), _number(one.cosine), _number(guess)))
    notes = [
        f"weights: {exact.weights}; log-probs differ from those that were trained with by at most {exact.apart:.2g}"
    ]
    notes += [f"{name}: not computed, it needs {one.missing}" for name, one in exact.gradients.items() if one.missing]
    head = ("algorithm", "norm", "cosine", "cosine from c")
    return Table(f"True gradients of optimizer step {exact.number}", head, tuple(rows), tuple(notes))


def _sample_table(replay: Replay, sample: int) -> Table:
    found = _sample_document(replay, sample)
    title = f"Sample {sample}: group {found['group']}, reward {_number(found['reward'])}, {len(found['ids'])} tokens"
    steps = ", ".join(map(str, found["left_out"]))
    gone = (f"nothing of it could move: it did not pass through the model at optimizer step {steps}",) if steps else ()
    if not found["optimizer_steps"]:
        return Table(title, ("token",), (), ("nothing was learned from it", *gone))
    last, texts = found["optimizer_steps"][-1], found["texts"]
    names = list(last["algorithms"])
    head = ["token", "id", *(["text"] if texts else [])]
    for i, name in enumerate(names):
        whose = f" [{name.partition(' with ')[0]}]" if i else ""  # the changes are named in the tables above
        head += [f"{letter}{whose}" for letter in ("A", "ρ", "c")]
    rows = list[tuple[str, ...]]()
    for t, token in enumerate(found["ids"]):
        row = [str(t), str(token), *([json.dumps(clean(texts[t]), ensure_ascii=False)] if texts else [])]
        for name in names:
            one = last["algorithms"][name]
            ratio = None if one["ratio"] is None else one["ratio"][t]
            row += [_number(one["advantage"][t]), _number(ratio)]
            row += [_number(one["coefficient"][t]) + (" held" if one["held"][t] else "")]
        rows.append(tuple(row))
    note = f"optimizer step {last['optimizer_step']}, {replay.told[0].name} first: advantage A, ratio ρ, coefficient c of ∇ log π"
    return Table(title, tuple(head), tuple(rows), (note, *gone))


def _step_document(one: StepAgain) -> dict[str, Any]:
    return {
        "outcome": one.taken.outcome, "samples": list(one.taken.samples), "left_out": list(one.taken.left_out),
        "loss": one.taken.loss, "again": one.loss, "difference": one.difference.value, "allowed": one.difference.allowed,
    }  # fmt: skip


def _other_document(trained: Other, other: Other) -> dict[str, Any]:
    if other.algorithm is None:
        return {"name": other.name, "missing": list(other.missing)}
    return {"name": other.name, **vars(compare(trained, other)), "redrawn": other.redrawn, "left_out": _beyond(other)}


def _sample_document(replay: Replay, sample: int) -> dict[str, Any]:
    batch = replay.saved.batch
    ids = replay.saved.ids_T[batch.seq_T == sample].tolist()
    taken_steps = list(enumerate(replay.saved.record.steps))
    steps = [
        {
            "optimizer_step": i + 1,
            "algorithms": {other.name: _tokens(acted, sample) for other in replay.told if (acted := _acted(other, i))},
        }
        for i, taken in taken_steps
        if sample in taken.computed and taken.current is not None
    ]
    left_out = [i + 1 for i, taken in taken_steps if sample in taken.left_out]
    return {
        "sample": sample, "group": int(batch.prompt_S[sample]), "reward": float(batch.reward_S[sample]),
        "truncated": bool(batch.truncated_S[sample]), "valid": bool(batch.valid_S[sample]), "ids": ids,
        "texts": token_texts(replay.folder, replay.again.config, ids), "optimizer_steps": steps,
        "left_out": left_out,
    }  # fmt: skip


def _acted(other: Other, index: int) -> Acted | None:
    return other.acted[index] if other.acted else None


def _tokens(acted: Acted, sample: int) -> dict[str, Any]:
    mine_M = acted.sample_M == sample
    return {
        "advantage": acted.advantage_M[mine_M].tolist(),
        "ratio": None if acted.ratio_M is None else acted.ratio_M[mine_M].tolist(),
        "weight": acted.weight_M[mine_M].tolist(),
        "coefficient": acted.coefficient_M[mine_M].tolist(),
        "held": acted.held_M[mine_M].tolist(),
    }


def _mean(value_M: Tensor | None, counted_M: Tensor) -> float | None:
    if value_M is None or not bool(counted_M.any()):
        return None
    return float(value_M[counted_M].double().mean())


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value + 0.0:.4g}"  # no sign on a zero


def _share(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.1%}"


def _verdict(ok: bool) -> str:
    return "same" if ok else "DIFFERS"
