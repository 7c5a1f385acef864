"""Stop strings on a model that recites: the text is cut, the sampled tokens are all kept."""

import pytest
from chains import reciter

from partita.engine.api import Draw, Request, Sampling
from partita.engine.local import LocalEngine

PROMPT, A, END_DOT, EN, D, EOT = 10, 3, 4, 5, 6, 2


@pytest.mark.parametrize(
    ("spoken", "kept", "text"),
    [
        ((A, END_DOT, D), 2, "a"),  # 'a', 'END.': the stop string ends inside the last token
        ((A, EN, D, END_DOT), 3, "a"),  # 'a', 'EN', 'D': it spans two
        ((A, EN, EOT), 3, "aEN"),  # never whole: the end token ends it
    ],
)
def test_ids_and_log_probs_keep_every_token(tokenizer, spoken, kept, text):
    model = reciter(len(tokenizer), dict(zip((PROMPT, *spoken), spoken, strict=False)))
    engine = LocalEngine(model, tokenizer, slots=1, context=32)
    try:
        sampling = Sampling(10, stop_ids=(EOT,), stop_strings=("END",))
        [future] = engine.submit([Request((PROMPT,), sampling, Draw(0, 0, 0, 0))])
        done = future.result(60)
    finally:
        engine.close()
    assert done.ids == spoken[:kept]
    assert done.logprobs == pytest.approx([0.0] * kept, abs=1e-6)
    assert done.versions == (0,) * kept
    assert (done.text, done.stop_reason) == (text, "stop")
