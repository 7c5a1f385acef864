import sys

import pytest

from partita.tasks.functions import LoadError, ending, error_text, load_object


def test_a_name_leads_to_an_object_of_a_module_or_a_file(tmp_path):
    file = tmp_path / "math.py"  # a name that the standard library has too
    file.write_text("from helper import two\n\ndef right(response):\n    return two\n")
    (tmp_path / "helper.py").write_text("two = 2.0\n")
    assert load_object(f"{file}:right")("x") == 2.0
    assert load_object("os.path:join") is load_object("os.path.join")
    assert sys.modules["math"].sqrt(4) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("right", "not a name of a Python object"),
        ("no_such_module_here:right", "no module named 'no_such_module_here'"),
        ("os.path:jion", "has no 'jion'; it has:"),
        ("/no/such/file.py:right", "no such file"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(name, words):
    with pytest.raises(LoadError, match=words):
        load_object(name)


def test_an_import_that_fails_inside_the_users_file_is_not_hidden(tmp_path):
    (tmp_path / "needs.py").write_text("import no_such_package\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        load_object(f"{tmp_path / 'needs.py'}:right")


def test_an_error_is_told_in_one_line_and_then_its_traceback():
    try:
        raise ValueError("bad\nrow")
    except ValueError as error:
        lines = error_text(error).split("\n")
    assert lines[0] == "ValueError: bad"
    assert lines[1].startswith("Traceback")


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_an_error_that_cannot_say_what_it_is_is_named_by_its_kind():
    try:
        raise Mute
    except Mute as error:
        lines = error_text(error).split("\n")
    assert lines[:2] == ["Mute: its message cannot be shown", "Traceback (most recent call last):"]


def test_an_exit_code_in_words():
    assert [ending(code) for code in (0, 3, -9, -40)] == [
        "exit code 0",
        "exit code 3",
        "signal 9 (SIGKILL)",
        "signal 40",
    ]
