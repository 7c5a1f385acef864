"""Write docs/scaling.md and docs/zh/scaling.md: how a step scales, measured where there are results, simulated beyond.

usage: python scripts/scaling.py [--check]

The text stands in docs/src/scaling.en.md and docs/src/scaling.zh.md. Tables of learners come from the formulas of
`partita.plan`, those of micro-batches from the code that deals them, those of servers from decode steps counted one by one; the
rates of the machine, and all measured tables, from benchmarks/results.
Left out: measuring (`benchmarks/`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pages
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from partita.ops.packing import micro_batches
from partita.plan.batch import Lengths, batch_of
from partita.plan.scaling import FAST_LINK, SLOW_LINK, Cluster, rank_bytes, scaled, step_bytes
from partita.plan.sizes import Sizes, sizes
from partita.plan.speed import Machine, Work, seconds_of, speed_from_flop
from partita.records import Row
from partita.run import RunConfig, load_run_config
from partita.train.config import MicroBatchConfig
from partita.trainer import QUICKSTART

COMMAND = "scripts/scaling.py"
RESULTS = pages.ROOT / "benchmarks" / "results"
GIB, GB, WIDTH = 2**30, 1e9, 2
BAR = "\\|"  # a cell's own, in Markdown
RANKS, SERVERS = (1, 2, 4, 8, 16), (1, 2, 4, 8)
GPU = Machine(4e14, 3e12)
"""Assumed, not measured: what large products of a present GPU reach, and what it copies."""
SMALL = LlamaConfig(
    hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
    vocab_size=49152, tie_word_embeddings=True,
)  # fmt: skip
LARGE = LlamaConfig(
    hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
    vocab_size=128256, tie_word_embeddings=False,
)  # fmt: skip
WORDS = {
    "en": {
        "learners": "learners", "servers": "servers", "gib": "GiB a rank", "sent": "GB sent by each, a step",
        "learn": "s learning", "wire": "s sending", "share": "share of ideal", "samples": "samples a step",
        "budget": "token budget", "seconds": "s sampling", "times": "times faster", "what": "what", "ours": "Partita",
        "peer": "compared with", "number": "its number", "ratio": "ratio", "pairs": "pairs", "date": "measured",
        "run": "run", "planned": "GiB planned", "most": "at most", "found": "measured", "planned_step": "s/step planned",
        "day": "on", "none": "No results yet; `{}` writes them.",
    },
    "zh": {
        "learners": "学习进程", "servers": "服务器", "gib": "每个 rank 的 GiB", "sent": "每步每个进程发送的 GB",
        "learn": "学习，秒", "wire": "发送，秒", "share": "占理想值的比例", "samples": "每步样本数",
        "budget": "token 预算", "seconds": "采样，秒", "times": "加速倍数", "what": "内容", "ours": "Partita",
        "peer": "对照", "number": "对照的数值", "ratio": "比值", "pairs": "配对数", "date": "测量日期",
        "run": "运行", "planned": "计划，GiB", "most": "最多", "found": "实测", "planned_step": "计划，秒每步",
        "day": "日期", "none": "还没有结果；由 `{}` 写入。",
    },
}  # fmt: skip
Words = Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """Cells, and what stands above them: names out of `WORDS` in braces."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]

    def markdown(self, words: Words) -> str:
        """In one language."""
        lines = [[cell.format(**words) for cell in self.head], ["---"] * len(self.head), *self.rows]
        return "\n".join(f"| {' | '.join(str(cell).replace('|', BAR) for cell in line)} |" for line in lines)


@dataclass(frozen=True)
class Case:
    """A model on a kind of machine, and the step that it takes there. link: bytes a second between processes."""

    model: LlamaConfig
    machine: Machine
    link: float
    words: tuple[str, ...]
    lengths: Lengths

    @cached_property
    def config(self) -> RunConfig:
        """The run's."""
        return load_run_config([QUICKSTART], list(self.words)).value

    @cached_property
    def sizes(self) -> Sizes:
        """Of the model, of which no weight is made."""
        with torch.device("meta"):
            return sizes(LlamaForCausalLM(self.model))


def rate(name: str) -> float:
    """A number of the measured machine, in its unit."""
    lines = (RESULTS / "bound.jsonl").read_text(encoding="utf-8").splitlines()
    return next(line["ours"] for line in map(json.loads, lines) if line["name"] == name)


def cases() -> dict[str, Case]:
    """The two that the page shows."""
    here = Machine(rate("rate training fixed short") * 1e9, rate("memory bandwidth, copy") * 1e9)
    long = ("train_dataset.batch_size=32", "gconfig.max_new_tokens=1024", "actor.mb_spec.max_tokens_per_mb=8192")
    return {
        "cpu": Case(SMALL, here, SLOW_LINK, ("train_dataset.batch_size=16",), Lengths(55, 55, 28, 32)),
        "gpu": Case(LARGE, GPU, FAST_LINK, long, Lengths(300, 300, 700, 1024)),
    }


@dataclass(frozen=True)
class Learning:
    """What a rank does in a step. gib: of weights at rest and gathered; sent: bytes; ideal: its share of an ideal speed."""

    gib: float
    sent: float
    learn: float
    communicate: float
    ideal: float


def learning(case: Case, ranks: int, budget: int | None = None) -> Learning:
    """On so many ranks, each on a machine or GPU of its own. budget: tokens of a micro-batch, where they are not the case's."""
    made, config = case.sizes, case.config
    if budget is not None:
        config = replace(config, actor=replace(config.actor, mb_spec=MicroBatchConfig(budget)))
    batch = batch_of(config, case.lengths, ranks=ranks)
    work = Work(batch, case.lengths, config.rollout.max_concurrent_rollouts, made, None, 0, 0, False, False)
    alone = seconds_of(speed_from_flop(case.machine, made, work, (WIDTH, WIDTH)), work)
    cluster = Cluster(learners=ranks, link=case.link, width=WIDTH)
    found = scaled(alone, made, batch, cluster, WIDTH)
    ideal = alone.learn / ranks / (found.learn + found.communicate)
    gib, sent = rank_bytes(made, ranks, WIDTH) / GIB, step_bytes(made, batch, cluster) / GB
    return Learning(gib, sent, found.learn, found.communicate, ideal)


def learners(case: Case) -> Table:
    """Memory, traffic and seconds of learning by the number of ranks."""
    rows = [(ranks, *_cells(learning(case, ranks))) for ranks in RANKS]
    return Table(("{learners}", "{gib}", "{sent}", "{learn}", "{wire}", "{share}"), rows)


def budgets(case: Case) -> Table:
    """The same of eight ranks, by the token budget of a micro-batch."""
    rows = [(f"{budget:,}", *_cells(learning(case, 8, budget))[1:]) for budget in (4096, 8192, 16384, 32768)]
    return Table(("{budget}", "{sent}", "{learn}", "{wire}", "{share}"), rows)


def _cells(one: Learning) -> tuple[str, ...]:
    return f"{one.gib:.1f}", f"{one.sent:.1f}", f"{one.learn:.1f}", f"{one.communicate:.1f}", f"{one.ideal:.0%}"


def drawn(samples: int, mean: int, longest: int) -> list[int]:
    """Lengths of responses that end at every token with the same chance, the same each time."""
    draw = random.Random(samples)
    return [min(longest, 1 + int(draw.expovariate(1 / mean))) for _ in range(samples)]


def balance() -> Table:
    """How evenly the real planner deals micro-batches of uneven samples: all tokens over ranks times the tokens of the turns."""
    group, prompt, rows = 8, 64, list[Sequence[object]]()
    for samples, budget in ((64, 4096), (512, 4096), (512, 16384)):
        lengths = drawn(samples, 200, 512)
        row = [_row(prompt, length, index) for index, length in enumerate(lengths)]
        owners = [index // group for index in range(samples)]
        need = samples // group * prompt + sum(length - 1 for length in lengths)
        shares = list[str]()
        for ranks in RANKS[1:]:
            plan = micro_batches([[one] for one in row], owners, budget, ranks=ranks)
            sizes_ = [len({owners[i] for i in part}) * prompt + sum(lengths[i] - 1 for i in part) for part in plan]
            turns = sum(max(sizes_[at : at + ranks]) for at in range(0, len(sizes_), ranks))
            shares.append(f"{need / (ranks * turns):.0%}")
        rows.append((samples, f"{budget:,}", *shares))
    return Table(("{samples}", "{budget}", *(f"{ranks} {{learners}}" for ranks in RANKS[1:])), rows)


def _row(prompt: int, response: int, sample: int) -> Row:
    return Row([0] * prompt + [sample + 1] * response, [False] * prompt + [True] * response, [], [])


def servers() -> Table:
    """Decode steps of each server, counted one by one: groups dealt as the client deals them, every step as long as the measured
    machine takes for so many rows.
    """
    eight, more = rate("bound decode 8"), rate("bound decode 64")
    row = (more - eight) / (64 - 8)
    base, group, rows = eight - 8 * row, 8, list[Sequence[object]]()
    for samples in (64, 512):
        lengths = drawn(samples, 200, 512)
        groups = [lengths[at : at + group] for at in range(0, samples, group)]
        alone = 0.0
        for count in SERVERS:
            dealt = [[one for some in groups[at::count] for one in some] for at in range(count)]
            spent = max(decoded(share, base, row) for share in dealt)
            alone = alone or spent
            rows.append((samples, count, f"{spent:.0f}", f"{alone / spent:.1f}", f"{alone / spent / count:.0%}"))
    return Table(("{samples}", "{servers}", "{seconds}", "{times}", "{share}"), rows)


def decoded(lengths: Sequence[int], base: float, row: float, slots: int = 64) -> float:
    """Seconds until the last response ends, where `slots` run at a time and a free one takes the next in order."""
    waiting, running, total = list(reversed(lengths)), list[int](), 0.0
    while waiting or running:
        running += [waiting.pop() for _ in range(min(slots - len(running), len(waiting)))]
        until = min(running)
        total += until * (base + row * len(running))
        running = [left - until for left in running if left > until]
    return total


def measured(file: str, command: str, words: Words) -> str:
    """The lines of a file of results, or how to make them."""
    path = RESULTS / file
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    if not lines:
        return words["none"].format(command)
    rows = list[Sequence[object]]()
    for line in lines:
        ratio = (
            "" if line["ratio"] is None else f"{line['ratio']:.2f} ({line['ratio_min']:.2f} – {line['ratio_max']:.2f})"
        )
        theirs = "" if line["peer_value"] is None else f"{line['peer_value']:.4g}"
        ours = f"{line['ours']:.4g} {line['unit']}".strip()
        rows.append((line["name"], ours, line["peer"], theirs, ratio, line["pairs"] or "", line["date"]))
    return Table(("{what}", "{ours}", "{peer}", "{number}", "{ratio}", "{pairs}", "{date}"), rows).markdown(words)


def planned(words: Words) -> str:
    """Plans beside what was measured, a row for each run; or how to make them."""
    path = RESULTS / "plan.jsonl"
    if not path.exists():
        return words["none"].format("python benchmarks/plan.py")
    lines = {one["name"]: one for one in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
    rows = list[Sequence[object]]()
    for name, memory in lines.items():
        if (run := name.removeprefix("plan memory ")) != name and (step := lines.get(f"plan step {run}")):
            numbers = [f"{memory['ours']:.2f}", memory["note"].removeprefix("at most "), f"{memory['peer_value']:.2f}"]
            times = [f"{step['ours']:.1f}", f"{step['peer_value']:.1f}", f"{step['ratio']:.2f}", step["date"]]
            rows.append((run, *numbers, f"{memory['ratio']:.2f}", *times))
    head = ("{run}", "{planned}", "{most}", "{found}", "{ratio}", "{planned_step}", "{found}", "{ratio}", "{day}")
    return Table(head, rows).markdown(words)


def generated() -> dict[Path, str]:
    """Each page's path and text."""
    docs, found = pages.ROOT / "docs", cases()
    tables = {
        "cpu": learners(found["cpu"]), "gpu": learners(found["gpu"]), "budgets": budgets(found["gpu"]), "balance": balance(),
        "servers": servers(),
    }  # fmt: skip
    made = dict[Path, str]()
    for code, path in (("en", docs / "scaling.md"), ("zh", docs / "zh" / "scaling.md")):
        words = WORDS[code]
        shown = {name: table.markdown(words) for name, table in tables.items()} | {
            "measured_servers": measured("servers.jsonl", "python benchmarks/servers.py", words),
            "measured_plan": planned(words),
        }
        text = (docs / "src" / f"scaling.{code}.md").read_text(encoding="utf-8")
        for name, table in shown.items():
            text = text.replace("{{" + name + "}}", table)
        made[path] = (
            f"<!-- made by {COMMAND} from docs/src/scaling.{code}.md, the code and results: edit those -->\n\n{text}"
        )
    return made


if __name__ == "__main__":
    pages.main(generated(), COMMAND, __doc__ or "")
