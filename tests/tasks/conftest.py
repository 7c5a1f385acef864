"""What the tests of data share: rows in a file, loaded."""

import json

import pytest

from partita.tasks.dataset import DatasetConfig, load_rows


@pytest.fixture
def load(tmp_path):
    """Loads rows from a .jsonl file with the given keys. side: those that are held out."""

    def load(rows, side=False, **keys):
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return load_rows(DatasetConfig(path=str(file), **keys), seed=1, held_out=side)

    return load
