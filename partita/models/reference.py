"""Whether a reference model means the same by a token id as the policy: only then can their log-probs be compared.

Left out: its precision and device, which are chosen where it is loaded.
"""

from __future__ import annotations

from partita.models.load import LoadedModel, ModelLoadError


def check_reference(policy: LoadedModel, reference: LoadedModel, *, whole_vocabulary: bool) -> None:
    """Raises ModelLoadError, naming both models, where their tokenizers differ.

    whole_vocabulary: whether they are compared over all tokens, not just on the sampled ones. Then their heads must be
    equally wide too: models of one family pad their vocabularies to different sizes.
    """
    names = f"policy {policy.model.lm.name_or_path}, reference {reference.model.lm.name_or_path}"
    ours, theirs = policy.tokenizer.get_vocab(), reference.tokenizer.get_vocab()
    if ours != theirs:
        token = min({*ours.items()} ^ {*theirs.items()}, key=lambda item: (item[1], item[0]))[0]
        raise ModelLoadError(
            f"{names}: their tokenizers differ ({len(ours)} and {len(theirs)} tokens; {token!r} is {ours.get(token, 'absent')} "
            f"and {theirs.get(token, 'absent')}), so a token id means two things. Take a reference of the policy's family, or "
            "leave ref.path out: then it is the starting policy"
        )
    widths = policy.model.vocabulary, reference.model.vocabulary
    if whole_vocabulary and widths[0] != widths[1]:
        raise ModelLoadError(
            f"{names}: logits of {widths[0]} and of {widths[1]} tokens. A KL over the whole vocabulary (estimator full) needs "
            "one vocabulary; take k1, k2 or k3, which look at the sampled tokens only, or another reference"
        )
