"""Whole runs, one after another, as one of several ranks: rank_runs.py FOLDER, whose jobs.json has a command line for each."""

import json
import sys
from pathlib import Path

from running import call

from partita.ops.ranks import leave_ranks

if __name__ == "__main__":
    for words in json.loads((Path(sys.argv[1]) / "jobs.json").read_text()):
        ended = call(*words)
        if ended.code != 0:
            sys.exit(f"{' '.join(words)} ended with {ended.code}:\n{ended.out}\n{ended.err}")
    leave_ranks()
