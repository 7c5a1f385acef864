"""Nothing that a model writes can steer a terminal."""

import pytest

from partita.report.text import clean, duration, fit_encoding, one_line, prompt_tail, shorten


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07rest", "rest"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1$r\x1b\\a\x1b7b\x9b2Jc", "abc"),
        ("a\rb\x08c\x00d\x7fe\x85f", "abcdef"),
        ("one\r\ntwo\n", "one\ntwo\n"),
        ("a\tb", "a    b"),
        ("\u202eevil\u2066", "evil"),
        ("half \ud83d", "half \ufffd"),
        ("[bold]x[/bold] <b> 数 😀", "[bold]x[/bold] <b> 数 😀"),
        ("end \x1b", "end "),
    ],
)
def test_clean(text: str, expected: str) -> None:
    assert clean(text) == expected


def test_shorten_keeps_head_and_tail_and_says_how_much_is_left_out() -> None:
    assert shorten("short", 10) == "short"
    assert shorten("a" * 500_000 + "b" * 500_000, 10) == "aaaaa … [999,990 characters] … bbbbb"


def test_prompt_tail_drops_the_markers_of_the_template() -> None:
    prompt = "<|im_start|>user\nLargest of 3, 9?<|im_end|>\n<|im_start|>assistant\n"
    assert prompt_tail(prompt, 100) == "user\nLargest of 3, 9?"
    assert prompt_tail(prompt, 6) == "… 3, 9?"
    assert prompt_tail("x" * 1_000_000, 4) == "… xxxx"


def test_one_line_and_encoding() -> None:
    assert one_line("a\nb") == "a\\nb"
    assert fit_encoding("a→b", "ascii") == "a?b"
    assert fit_encoding("a→b", None) == "a→b"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0s"), (8.4, "8.4s"), (59.96, "1m00s"), (151, "2m31s"), (3900, "1h05m"), (86400 * 3 + 4 * 3600, "3d04h")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
