"""The probe tells the truth: where nothing contains it, it gets far, and says so."""

import subprocess
import sys

from partita.tasks.graders.sandbox.probe import PROBE, folder_of_secrets, probe_input, read_report


def test_an_unhindered_probe_reports_what_it_could_do():
    with folder_of_secrets() as folder:
        given = probe_input(folder, 1 << 20)
        ran = subprocess.run([sys.executable, "-c", PROBE], input=given, capture_output=True, env={"A": "b"})
    tried, done = read_report(ran.stdout)
    assert (
        {"read a file of yours", "delete a file of yours", "start a process", "have an environment"}
        <= set(done)
        <= {
            *tried,
            "start a program of its own",
        }
    )
    assert "start a program of its own" in done and "open an internet socket" in done


def test_a_probe_that_did_not_end_reports_nothing():
    assert read_report(b"") == ((), ())
