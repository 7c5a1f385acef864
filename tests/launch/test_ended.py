"""Exit codes in words, last lines, and whose end came first."""

from pathlib import Path

import pytest

from partita.launch.ended import LINES, Status, how, last_lines, read_json, read_status, write_status


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "with exit code 0"), (2, "with exit code 2"), (-9, "by SIGKILL (signal 9)"), (-250, "by signal 250")],
)
def test_how_a_process_ended(code: int, words: str) -> None:
    assert how(code) == words


def test_last_lines_are_the_last_ones_of_this_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log) == ()
    log.write_bytes(b"old\n")
    began = log.stat().st_size
    log.write_bytes(b"old\n" + b"".join(b"%d  \n\n" % i for i in range(9000)) + b"\xff!\r\n")
    found = last_lines(log, began)
    assert len(found) == LINES and found[-2:] == ("8999", "�!")
    log.write_bytes(b"old\nnew\n")
    assert last_lines(log, began) == ("new",)


def test_a_status_is_of_one_launch_and_a_torn_file_is_none(tmp_path: Path) -> None:
    file, status = tmp_path / "deeper" / "status.json", Status("this", -9, 12.5, ("a", "b"))
    write_status(file, status)
    assert read_status(file, "this") == status
    assert read_status(file, "that") is None
    file.write_text('{"launch": "th')
    assert read_json(file) == {} and read_status(file, "this") is None


@pytest.mark.parametrize(
    ("code", "line", "by_another"),
    [
        (1, "error: rank 0 of 2 lost the connection to another rank, which has ended", True),
        (1, "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error", True),
        (1, "ZeroDivisionError: division by zero", False),
        (2, "error: lost connection", False),
        (-9, "error: lost connection", False),
    ],
)
def test_who_only_lost_another_is_not_blamed(code: int, line: str, by_another: bool) -> None:
    assert Status("x", code, 0.0, ("before", line)).by_another is by_another
