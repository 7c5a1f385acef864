"""The page on judges names every key."""

import re
from dataclasses import fields
from pathlib import Path

from partita.tasks.judges.settings import BudgetConfig, JudgeConfig

PAGE = Path(__file__).parents[3] / "docs" / "judges.md"


def test_the_page_names_every_key():
    words = set(re.findall(r"\w+", PAGE.read_text(encoding="utf-8")))
    assert {item.name for cls in (JudgeConfig, BudgetConfig) for item in fields(cls)} - words == set()
