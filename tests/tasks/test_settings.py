"""Keys of a data section that exclude each other, and sections for other rows."""

import pytest

from partita.tasks.settings import ColumnsConfig, CurriculumConfig, DatasetConfig, MixedSourceConfig, PassRatesConfig


def test_keys_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match=r"answer_format=gsm8k needs an answer column"):
        DatasetConfig(answer_format="gsm8k", columns=ColumnsConfig(answer=None))
    with pytest.raises(ValueError, match=r"curriculum.by=pass_rate needs pass_rates.files"):
        DatasetConfig(curriculum=CurriculumConfig())
    with pytest.raises(ValueError, match=r"streaming with size, dedup: that needs all rows at once"):
        DatasetConfig(streaming=True, mix={"a": MixedSourceConfig(path="a", size=3, dedup=True)})


def test_other_rows_can_be_read_alike_without_what_chooses_training_rows():
    section = DatasetConfig(
        path="a.jsonl", columns=ColumnsConfig(prompt="q"), system="Brief.", prefill="So", held_out=0.1, size=3,
        where={"level": 1}, pass_rates=PassRatesConfig(["rates"], min=0.1), curriculum=CurriculumConfig("level"),
    )  # fmt: skip
    alike = section.read_alike(path="b.jsonl", split="test")
    assert alike == DatasetConfig(
        path="b.jsonl", split="test", columns=ColumnsConfig(prompt="q"), system="Brief.", prefill="So", shuffle=False
    )
