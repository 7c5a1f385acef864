import pytest

from partita.tasks.graders.final import after_thinking, fenced_blocks, final_text, last_box, with_opened_thought


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("Paris", "Paris"),
        ("  Paris \n", "Paris"),
        ("so \\boxed{Paris}, as said", "Paris"),
        ("\\boxed{Rome} no \\boxed{Paris}", "Paris"),
        ("\\boxed{Rome} no \\boxed{", ""),
        ("<answer>Rome</answer> or <answer> Paris </answer>.", "Paris"),
        ("<answer>Rome</answer>, no, <answer>Paris", ""),
        ("<answer> </answer>", ""),
        ("Paris</answer> as the prompt began it", "Paris"),
        ("<think>Rome</think>Paris", "Paris"),
        ("<think>\\boxed{Rome}</think>Paris", "Paris"),
        ("<think>Paris", ""),
        ("", ""),
    ],
)
def test_the_final_text(response, text):
    assert final_text(response) == text


def test_what_follows_the_thinking():
    assert after_thinking("a</think>b</think>c") == "c" and after_thinking("abc") == "abc"
    assert after_thinking("<think>a") is None and after_thinking("a</think><think>b") is None


def test_a_thought_that_the_prompt_opened_belongs_to_the_response():
    assert with_opened_thought("<user>Why?<assistant><think>\n", "so </think> 5") == "<think>so </think> 5"
    assert with_opened_thought("<assistant><think>", "<think>so</think> 5") == "<think>so</think> 5"
    for prompt in ("<assistant>", "Use <think> tags.<assistant>", "<assistant><think></think>"):
        assert with_opened_thought(prompt, "5") == "5"


def test_the_last_box_balances_its_braces():
    assert last_box("\\boxed{1} then \\boxed{\\{a\\} {b}} end") == "\\{a\\} {b}"
    assert last_box("\\boxed{\\boxed{5}}") == "5"
    assert last_box("\\boxed{\\}") is None


def test_fenced_blocks_in_their_order():
    text = "a\n```python\nb\n```\n~~~\nc\n```\n~~~\n````json\n```\n````\n```never\nclosed"
    assert fenced_blocks(text) == [("python", "b\n"), ("", "c\n```\n"), ("json", "```\n")]
