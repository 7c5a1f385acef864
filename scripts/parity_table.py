"""Write docs/parity.md and docs/zh/parity.md from the table that tests/parity runs.

usage: python scripts/parity_table.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from math import isnan
from pathlib import Path
from typing import Any

import pages

sys.path.insert(0, str(pages.ROOT / "tests"))  # the table stands beside the tests that run it
from parity.cases import FUNCTIONS, Absent, Case, Peer, Text, Topic
from parity.trl_cases import TRL, TRL_ABSENT
from parity.verl_cases import VERL, VERL_ABSENT

COMMAND = "scripts/parity_table.py"
CASES, ABSENT = (*TRL, *VERL), (*TRL_ABSENT, *VERL_ABSENT)
PAGES = {"en": pages.ROOT / "docs" / "parity.md", "zh": pages.ROOT / "docs" / "zh" / "parity.md"}
PEERS: dict[Peer, str] = {"trl": "TRL", "verl": "verl"}
TOPICS: dict[Topic, Text] = {
    "loss": Text("Losses", "损失"),
    "aggregation": Text("Aggregation", "聚合"),
    "advantage": Text("Advantages", "优势"),
    "kl": Text("KL estimators", "KL 估计量"),
    "correction": Text("Off-policy corrections", "离策略修正"),
    "critic": Text("Critic", "critic"),
    "controller": Text("Controllers", "控制器"),
    "reward": Text("Rewards", "奖励"),
    "pairs": Text("Preference pairs", "偏好对"),
}
NOT_TOLD = {"observed", "n_steps", "alone"}  # how a case is fed and called, which is no setting of the peer

HEAD = Text(
    """# Against TRL and verl

Made by `python scripts/parity_table.py` from the cases in `tests/parity`; change those, not this page.

[中文](zh/parity.md)

`make parity` compares {count} settings of TRL 1.16.0's and verl 0.9.1's own functions with our compositions, in float32, on the
CPU, and runs in an environment of its own (`.venv-bench`). {agree} agree; {differ} differ, on purpose, and a test pins both
numbers.

- **What is called.** Of TRL the trainers themselves, built as a user builds them; a table of log-probs stands in for the network.
  Of verl its functions, told the token and row counts of the step as its losses ask for them. Of ours `compose` with the keys
  of the row (under `actor.`), then credit, weights and loss on the same batch, packed.
- **On what.** Five random batches a row: 8 to 20 rows of 1 to 9 trained tokens, masked tokens between them (not for RLOO's
  trainer, which has no mask for them), groups of unequal size in shuffled order (TRL: of three, in order), advantages of
  both signs, log-ratios within ±0.7.
- **How near.** Value and gradient within 1e-5; where no entry reaches 1, within 1e-5 of the largest, or of 0.01 if that is more.
- **Whether it can fail.** Leaving out a key that is not the default breaks the agreement by ten times that, or is refused.

The extra `bench` brings TRL and what verl's functions import. verl itself pins transformers below 5.11, so
pip refuses it beside Partita; `scripts/setup_venv.py` installs it with `--no-deps`, and its functions run. Without a peer its
tests are skipped.
""",
    """# 与 TRL 和 verl 对照

本页由 `python scripts/parity_table.py` 根据 `tests/parity` 中的用例生成；请改用例，不要直接改本页。

[English](../parity.md)

`make parity` 把 TRL 1.16.0 和 verl 0.9.1 自己的函数的 {count} 种设置与我们的组合相比较，用 float32，在 CPU 上，
并在单独的环境（`.venv-bench`）中运行。其中 {agree} 种一致；{differ} 种有意不同，由测试固定双方的数值。

- **调用什么。** TRL 一方是训练器本身，按用户的方式构造，用一张对数概率表代替网络。verl 一方是它的函数，并按其损失函数的要求
  给出该步的 token 数和行数。我们一方是用该行的键（在 `actor.` 之下）调用 `compose`，再对同一批打包后的数据计算信用、权重和损失。
- **用什么数据。** 每行五个随机批次：8 到 20 行，每行 1 到 9 个训练 token，其间夹有被屏蔽的 token（RLOO 的训练器除外，
  它没有这种掩码），组的大小不等且顺序打乱（TRL：每组三个，依次排列），优势有正有负，对数比率在 ±0.7 之内。
- **多接近。** 值和梯度都在 1e-5 之内；没有元素达到 1 时，在最大元素的 1e-5 之内，最大元素不足 0.01 时按 0.01 计。
- **能否失败。** 去掉任何一个不是默认值的键，都会使差距达到上述的十倍以上，或者被拒绝。

可选依赖 `bench` 带来 TRL 和 verl 的函数所导入的包。verl 自己要求 transformers 低于 5.11，因此 pip 拒绝把它与 Partita
装在一起；`scripts/setup_venv.py` 用 `--no-deps` 安装它，它的函数可以运行。缺少某一方时，对应的测试会被跳过。
""",
)
AGREE = Text("## Where we agree", "## 一致之处")
AGREE_COLUMNS = Text(
    "| what | peer | its setting | our keys |\n|---|---|---|---|",
    "| 内容 | 对方 | 对方的设置 | 我们的键 |\n|---|---|---|---|",
)
DIFFER = Text(
    """## Where we differ on purpose

The two numbers are for a batch of one to eight short rows, laid by hand in the case of the same name.
""",
    """## 有意不同之处

两个数值来自同名用例中手工给出的批次，由一到八个短行组成。
""",
)
DIFFER_COLUMNS = Text(
    "| what | peer | its number | ours | why |\n|---|---|---|---|---|",
    "| 内容 | 对方 | 对方的数值 | 我们的 | 原因 |\n|---|---|---|---|---|",
)
ABSENT_HEAD = Text("## What they have and we do not", "## 对方有而我们没有的")
ABSENT_COLUMNS = Text("| peer | name | what it is |\n|---|---|---|", "| 对方 | 名称 | 含义 |\n|---|---|---|")
CALLED = Text("Functions called: {names}.", "调用的函数：{names}。")


def say(text: Text, language: str) -> str:
    """The sentence in that language."""
    return text.en if language == "en" else text.zh


def flow(value: Any) -> str:
    """A value as it stands in a YAML file, on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def setting(values: Mapping[str, Any]) -> str:
    """Keys and values, each in its own code span."""
    return ", ".join(f"`{key}: {flow(value)}`" for key, value in values.items() if key not in NOT_TOLD)


def keys(case: Case) -> str:
    """Our side of a row: keys, or for pairs the loss with its fields."""
    if case.topic != "pairs":
        return setting(case.keys)
    given = ", ".join(f"{key}={flow(value)}" for key, value in case.keys.items() if key != "loss")
    return f"`{case.keys['loss']}({given})`"


def agreement(cases: Iterable[Case], language: str) -> list[str]:
    """A table for each topic, with the functions behind it."""
    lines: list[str] = []
    for topic, title in TOPICS.items():
        chosen = [case for case in cases if case.topic == topic]
        if not chosen:
            continue
        called = dict.fromkeys(f"{PEERS[case.peer]} `{FUNCTIONS[case.peer, case.call]}`" for case in chosen)
        lines += [f"### {say(title, language)}", "", say(AGREE_COLUMNS, language)]
        lines += [
            f"| {say(case.what, language)} | {PEERS[case.peer]} | {setting(case.setting)} | {keys(case)} |"
            for case in chosen
        ]
        lines += ["", say(CALLED, language).format(names=", ".join(called)), ""]
    return lines


def number(value: float) -> str:
    """Six digits at most."""
    return "NaN" if isnan(value) else f"{value:g}"


def differences(cases: Iterable[Case], language: str) -> list[str]:
    """Both numbers and the reason."""
    return [
        f"| {say(case.what, language)} | {PEERS[case.peer]} | {number(case.differs.peer)} "
        f"| {number(case.differs.ours)} | {say(case.differs.why, language)} |"
        for case in cases
        if case.differs is not None
    ]


def absences(absent: Iterable[Absent], language: str) -> list[str]:
    """What has no counterpart."""
    return [
        f"| {PEERS[item.peer]} | {', '.join(f'`{name}`' for name in item.names)} | {say(item.what, language)} |"
        for item in absent
    ]


def page(language: str) -> str:
    """The whole page."""
    agreeing = [case for case in CASES if case.differs is None]
    counts = {"count": len(CASES), "agree": len(agreeing), "differ": len(CASES) - len(agreeing)}
    lines = [
        say(HEAD, language).format(**counts), say(AGREE, language), "", *agreement(agreeing, language),
        say(DIFFER, language), say(DIFFER_COLUMNS, language), *differences(CASES, language), "",
        say(ABSENT_HEAD, language), "", say(ABSENT_COLUMNS, language), *absences(ABSENT, language), "",
    ]  # fmt: skip
    return "\n".join(lines)


def generated() -> dict[Path, str]:
    """The text of both pages."""
    return {path: page(language) for language, path in PAGES.items()}


if __name__ == "__main__":
    pages.main(generated(), COMMAND, "write docs/parity.md and docs/zh/parity.md")
