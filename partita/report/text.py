"""Making untrusted text safe to show: model output may hold escape codes, markup, lone surrogates, or a megabyte.

Left out: files. What is stored keeps every character; only what a terminal or an image shows passes through here.
"""

from __future__ import annotations

import re

# Whole escape sequences go, not only their first byte: "\x1b[31m" must not leave "[31m" behind.
ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC (titles, links) up to BEL or ST
    r"|\x1b[P^_X][^\x1b]*(?:\x1b\\)?"  # DCS, PM, APC, SOS strings
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI (colours, cursor)
    r"|\x1b[ -/]*[0-~]?"  # other two-byte sequences
)
# C0 and C1 controls besides newline and tab, line separators, and the marks that reorder a line on screen.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
CHAT_MARKERS = re.compile(r"<\|\w{1,40}\|>")  # ChatML, Llama 3, Phi: <|im_start|>, <|eot_id|>
SURROGATES = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """The text without escape sequences and control characters; newlines stay, tabs become spaces."""
    text = ESCAPES.sub("", text.replace("\r\n", "\n"))
    text = CONTROLS.sub("", text).replace("\t", "    ")
    return SURROGATES.sub("\ufffd", text)


def shorten(text: str, limit: int) -> str:
    """Clean text of about `limit` characters: the head and the tail, with the number left out between them."""
    if len(text) <= limit:
        return clean(text)
    head, tail = limit - limit // 2, limit // 2
    # Cut before cleaning: a megabyte is not scanned for the sake of a line.
    left_out = len(text) - head - tail
    return f"{clean(text[:head])} … [{left_out:,} characters] … {clean(text[len(text) - tail :])}"


def prompt_tail(prompt: str, limit: int) -> str:
    """Clean text of about `limit` characters from the end of a rendered prompt, without the chat template's markers."""
    window = 4 * limit + 200  # markers and padding take room that the reader never sees
    text = CHAT_MARKERS.sub("", clean(prompt[-window:])).strip()
    text = text.removesuffix("assistant").rstrip()  # the header of the turn that the response fills
    return text if len(text) <= limit and len(prompt) <= window else "… " + text[-limit:].lstrip()


def one_line(text: str) -> str:
    r"""The text on one line: each newline shown as the two characters `\n`, so that a log keeps one record per line."""
    return text.replace("\n", "\\n")


def fit_encoding(text: str, encoding: str | None) -> str:
    """The text with what a stream cannot encode replaced by `?`; a C locale must not end a run."""
    name = encoding or "utf-8"
    return text.encode(name, "replace").decode(name)


def duration(seconds: float) -> str:
    """`8.4s`, `2m31s`, `1h05m`, `3d04h`."""
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02d}h"
