"""Write docs/algorithms.md and docs/algorithms/, and both in Chinese: text from docs/src/algorithms, blocks from code.

usage: python scripts/algorithm_pages.py [--check]

A source is NAME.en.md or NAME.zh.md. `{{block}}` or `{{block argument ...}}` in it stands for what `algorithm_tables`
makes. Raises ValueError for a block that does not exist, a page without its translation, and for anything that no page
names in code quotes: a preset, a part, a rule, a pair loss, or a word that a key can take.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Literal, get_args, get_origin

import algorithm_tables as tables
import pages
import preference_tables as preferences
from algorithm_tables import Words

from partita.algo import (
    balance,
    bradley,
    center,
    controllers,
    correct,
    credit,
    gate,
    keep,
    kl_control,
    norm,
    pairwise,
    penalty,
    ratio,
    reduce,
    rows,
    shape,
    value,
)
from partita.algo.keys import AlgorithmKeys
from partita.algo.presets import PRESETS
from partita.config.schema import all_keys, arms

COMMAND = "scripts/algorithm_pages.py"
DOCS = pages.ROOT / "docs"
SOURCES = DOCS / "src" / "algorithms"
INDEX = "index"
PART_MODULES = (
    balance, bradley, center, controllers, correct, credit, gate, keep, kl_control, norm, pairwise, penalty, ratio, reduce, rows,
    shape, value,
)  # fmt: skip
BLOCKS: Mapping[str, Callable[..., str]] = {
    "preset": tables.preset,
    "example": tables.example,
    "gates": tables.gates,
    "compare": tables.compare,
    "keys": tables.all_keys,
    "matrix": tables.matrix,
    "matrix_formulas": tables.matrix_formulas,
    "corrections": tables.corrections,
    "aggregations": tables.aggregations,
    "kl_gradients": tables.kl_gradients,
    "trpo": tables.trpo,
    "entropy_forms": tables.entropy_forms,
    "pair_losses": preferences.pair_losses,
    "judged_losses": preferences.judged_losses,
    "reward_losses": preferences.reward_losses,
    "methods": preferences.methods,
    "dpo_gradients": preferences.dpo_gradients,
    "pass_at": tables.pass_at,
    "maj_at": tables.maj_at,
}
PLACE = re.compile(r"\{\{(\w+)((?: \w+)*)\}\}")


@dataclass(frozen=True)
class Language:
    """Where a language's pages go, and the words around what is made from code."""

    code: str
    folder: Path
    words: Words
    made: str
    index: str
    other: str

    def page(self, name: str) -> Path:
        """The page of a source: the index beside the folder of the others."""
        return self.folder / "algorithms.md" if name == INDEX else self.folder / "algorithms" / f"{name}.md"

    def source(self, name: str) -> Path:
        """The hand-written text."""
        return SOURCES / f"{name}.{self.code}.md"

    def names(self) -> set[str]:
        """The sources that there are."""
        return {path.name.removesuffix(f".{self.code}.md") for path in SOURCES.glob(f"*.{self.code}.md")}


CHINESE = Words(
    {
        # lines of a source's own formula
        "b any baseline that does not depend on the sample": "b 为不依赖该样本的任意基线",
        "o is right": "o 正确",
        "o from the SFT model": "o 来自 SFT 模型",
        "o from the policy of now": "o 来自当前策略",
        "over the G samples of a prompt": "统计范围为同一 prompt 的 G 个样本",
        "C the generation budget": "C 为生成长度预算",
        "on groups with": "只用满足条件的组：",
        "r_i the task's reward plus the soft overlong penalty": "r_i 为任务奖励加软性超长惩罚",
        "β from 0.9 to 0.99": "β 取 0.9 到 0.99",
        "more samples for prompts on which the policy is unsure, by entropy or by the variance of the rewards": (
            "策略拿不准的 prompt 多采样本，依据熵或奖励的方差"
        ),
        "A_it from a critic by GAE, then normalised over the batch": "A_it 由评论家按 GAE 给出，再按批归一化",
        "τ by the sign of A_i": "τ 由 A_i 的符号决定",
        "on every token": "（每个 token 上）",
        "with R_i": "其中 R_i",
        # formulas of parts and rules
        "the trainer's weights before the step": "该步之前训练器的权重",
        "statistics over tokens": "按 token 统计",
        "groups with 0 < #right < K, right: reward ≥": "满足 0 < 正确数 < K 的组，正确：奖励 ≥",
        "#right < G": "正确数 < G",
        "all groups": "所有组",
        "A scaled by sign so that": "按符号缩放 A，使",
        "minimises": "最小化",
        "batch of raw rewards": "批内原始奖励",
        "the group's others": "组内其他样本",
        "μ, the running mean": "μ",
        "variance of the step, before it is used; from the first step's": "该步的方差，先更新后使用；初值取第一步",
        r"\(group\)": "(组)",
        r"\(batch": "(批",
        ": no ratio": "：没有比率",
        r"(\S+), 0 above (\S+)": r"\1，超过 \2 时为 0",
        r"τ = (\S+) for A_i > 0, else (\S+)": r"A_i > 0 时 τ = \1，否则 \2",
        "τ = τ_pos for A_i > 0, else τ_neg": "A_i > 0 时 τ = τ_pos，否则 τ_neg",
        r"w_it = 0 where (.*) and (.*), else 1": r"若 \1 且 \2 则 w_it = 0，否则为 1",
        r"w_it = 0 for the largest (\S+ \S+), until the mean of the others is below (\S+)": (
            r"去掉最大的 \1（w_it = 0），直到其余的均值低于 \2"
        ),
        r"w_it = (.*) where (\S+) ≤ (.*) ≤ (\S+), else 0": r"若 \2 ≤ \3 ≤ \4 则 w_it = \1，否则为 0",
        r"c \+ (\S+) where (.*), else c - (\S+), H before this step; c acts while (.*), the old c": (
            r"c + \1（\2 时），否则 c - \3，H 为该步之前的熵；仅当 \4 时用旧的 c"
        ),
        r"2β where (.*), β/2 where (.*), KL per token": r"2β（\1），β/2（\2），KL 按 token 计",
        "IQR_ref of the first step with one": "IQR_ref 取首个大于 0 的 IQR",
        r"from (\S+), within (\S+) to (\S+)": r"初值 \1，范围 \2 到 \3",
        "h per token": "h 按 token 平均",
        "h of mean log-probs": "h 为平均对数概率之差",
        "c and r mean log-probs": "c、r 为平均对数概率",
        "(.*) if desirable, else (.*)": r"合意：\1；不合意：\2",
        # the unified view
        "Online RFT": "在线 RFT",
        "none: a demonstration counts as right": "无：示范即视为正确",
        "demonstrations": "示范",
        "pairs of samples of the SFT model": "SFT 模型的样本对",
        "samples of the SFT model": "SFT 模型的样本",
        "groups of samples of the policy": "策略的样本组",
        "samples of the policy": "策略的样本",
        "a preference, or a rule": "偏好，或规则",
        "a rule": "规则",
        "a reward model": "奖励模型",
        "1 if right, else 0": "正确则为 1，否则为 0",
        "(.*) chosen, (.*) rejected": r"被选 \1，被拒 \2",
        "A_t by GAE": "A_t，由 GAE 给出",
        # where something stands
        "section 3, equation 7; advantages: equations 11 and 12": "第 3 节，公式 7；优势：公式 11 和 12",
        "sections 5.1 and 5.2, Self-Adaptive Policy Optimization": "第 5.1、5.2 节（自适应策略优化）",
        "section 4.1, Group-wise Smoothed Policy Optimization": "第 4.1 节（组平滑策略优化）",
        r"section (\S+), where it stands under the name of DAPO": r"第 \1 节，原文称之为 DAPO",
        r"section (\d[\d.]*\d|\d)": r"第 \1 节",
        r"equations (\S+) and (\S+)": r"公式 \1 和 \2",
        r"equation (\S+)": r"公式 \1",
        r"table (\S+)": r"表 \1",
        "length penalty": "长度惩罚",
        r"Lite PPO; settings: appendix": "Lite PPO 一节；设置：附录",
        r"appendix (\S+)": r"附录 \1",
        "authors' scripts": "作者的脚本",
        "TRL's paper index": "TRL 的论文索引",
        r"verl pull request (\d+)": r"verl 的 PR \1",
        "defaults of verl and TRL": "verl 和 TRL 的默认值",
        "project blog": "项目博客",
        "project README": "项目 README",
        "algorithm configuration matrix": "算法配置矩阵",
        "matrix": "矩阵",
        # labels and heads of tables
        "maximise": "最大化",
        "clip centre": "裁剪中心",
        "one ratio": "共用比率",
        "^advantage$": "优势",
        "^weight$": "权重",
        "^credit$": "信用",
        "^rewards?$": "奖励",
        "^method$": "方法",
        "^data$": "数据",
        "^gradient coefficient$": "梯度系数",
        "^desirable$": "合意",
        "^undesirable$": "不合意",
        "^critic$": "评论家",
        "^balance$": "平衡",
        "^kept$": "保留",
        "^rule$": "规则",
        "^samples$": "样本",
        "^slot$": "槽位",
        "^part$": "部件",
        "^formula$": "公式",
        "^key$": "键",
        "^here$": "此处",
        "^in grpo$": "grpo 中",
        "^default$": "默认",
        "^[Ss]ource$": "出处",
        "^set by$": "由谁设置",
        "^presets?$": "预设",
        "^sums$": "求和",
        "^ratio": "比率",
        "^gate$": "门",
        "^loss$": "损失",
        "^in the loss$": "在损失中",
        "^in the reward$": "在奖励中",
        "^right of 8$": "8 个中正确数",
        "^right answer$": "正确答案",
        "REINFORCE Leave-One-Out": "REINFORCE 留一法",
    }
)

LANGUAGES = (
    Language(
        "en", DOCS, Words(),
        f"Made by `python {COMMAND}` from the code and `{{source}}`; change those, not this page.",
        "All algorithms", "English",
    ),
    Language(
        "zh", DOCS / "zh", CHINESE,
        f"本页由 `python {COMMAND}` 根据代码和 `{{source}}` 生成；请改后两者，不要直接改本页。",
        "全部算法", "中文",
    ),
)  # fmt: skip


def generated() -> dict[Path, str]:
    """Every page and its text."""
    names = source_names()
    for language in LANGUAGES:
        text = "\n".join(language.source(name).read_text(encoding="utf-8") for name in names)
        if missing := list(unmentioned(text)):
            raise ValueError(
                f"no {language.code} page under {SOURCES.relative_to(pages.ROOT)} names {', '.join(missing)}"
            )
    return {language.page(name): _page(language, name) for language in LANGUAGES for name in names}


def source_names() -> list[str]:
    """The pages, by the names of their sources. Raises ValueError for one that a language lacks."""
    have = {language.code: language.names() for language in LANGUAGES}
    alone = set.union(*have.values()) - set.intersection(*have.values())
    if alone:
        raise ValueError(f"without a translation under {SOURCES.relative_to(pages.ROOT)}: {', '.join(sorted(alone))}")
    return sorted(next(iter(have.values())))


def _page(language: Language, name: str) -> str:
    source = language.source(name)
    text = PLACE.sub(lambda place: _block(language, source, place), source.read_text(encoding="utf-8"))
    title, _, rest = text.partition("\n")
    made = language.made.format(source=source.relative_to(pages.ROOT))
    return f"{title}\n\n{_links(language, name)}\n\n{made}\n{rest}"


def _block(language: Language, source: Path, place: re.Match[str]) -> str:
    make = BLOCKS.get(place[1])
    if make is None:
        raise ValueError(
            f"{source.relative_to(pages.ROOT)}: {place[0]} stands for nothing; blocks: {', '.join(BLOCKS)}"
        )
    return make(language.words, *place[2].split())


def _links(language: Language, name: str) -> str:
    """To the same page in the other languages, and from a page to the index."""
    page = language.page(name)
    others = [f"[{other.other}]({_relative(other.page(name), page)})" for other in LANGUAGES if other != language]
    index = [] if name == INDEX else [f"[{language.index}]({_relative(language.page(INDEX), page)})"]
    return " · ".join([*index, *others])


def _relative(target: Path, page: Path) -> str:
    return Path(os.path.relpath(target, page.parent)).as_posix()


def unmentioned(text: str) -> Iterator[str]:
    """Presets without a block or a place in the matrix, and parts and words of keys that no code quote holds."""
    placed = {word for place in PLACE.finditer(text) if place[1] == "preset" for word in place[2].split()}
    yield from (name for name in tables.OWN if name not in placed)
    quoted = " ".join(re.findall(r"`([^`\n]+)`", text))
    words = set(re.findall(r"\w+", quoted))
    yield from (name for name in (*PRESETS, *part_names(), *choices()) if name not in words)


def part_names() -> Iterator[str]:
    """Every part, rule and pair loss: the dataclasses of the slot modules that compute or observe something."""
    for module in PART_MODULES:
        for name, made in vars(module).items():
            own = isinstance(made, type) and made.__module__ == module.__name__
            if own and is_dataclass(made) and not {"__call__", "observe", "scale"}.isdisjoint(vars(made)):
                yield name


def choices() -> Iterator[str]:
    """Every word that an algorithm key can take, also inside its sections."""
    for key in all_keys(AlgorithmKeys).values():
        literals = [arm for arm in arms(key.hint) if get_origin(arm) is Literal]
        named = [*(key.choices or ()), *(word for arm in literals for word in get_args(arm))]
        yield from (word for word in named if isinstance(word, str))


if __name__ == "__main__":
    pages.main(generated(), COMMAND, "write the algorithm pages in English and Chinese")
