"""`partita explain` tells of presets and of config files, and names what is neither."""

from pathlib import Path

from running import Ended, call


def refused(ended: Ended, *parts: str) -> None:
    assert ended.code == 2, ended.err
    assert ended.err.startswith("error: ")
    for part in parts:
        assert part in ended.err


def test_explain_names_keys_parts_and_differences() -> None:
    ended = call("explain", "dapo")
    assert ended.code == 0
    for part in ("eps_clip_higher", "0.28", "arXiv", "Difference to grpo", "MinClip"):
        assert part in ended.out
    other = call("explain", "dapo", "--against", "drgrpo", "--markdown")
    assert other.code == 0
    assert other.out.startswith("# dapo\n")
    assert "## Difference to drgrpo: keys" in other.out
    assert "Difference to grpo" not in other.out
    assert "Difference" not in call("explain", "grpo").out


def test_explain_reads_a_config_file_with_its_lengths_and_its_stages(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "algorithm: dapo\ntotal_train_steps: 5\ngconfig: {n_samples: 4, max_new_tokens: 50}\nactor: {eps_clip: 0.1}\n"
    )
    ended = call("explain", file)
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"{file}\n")
    for part in ("n_samples 4, max_new_tokens 50", "clip((40 - |o|)/10, -1, 0)", "low=0.1", "0.1 (0.2)"):
        assert part in ended.out
    changed = call("explain", file, "gconfig.adaptive_n={max: 8}", "--against", "dapo")
    assert f"{file} with gconfig.adaptive_n={{max: 8}}\n" in changed.out
    assert "gconfig.adaptive_n" in changed.out.split("Keys")[1]
    with file.open("a") as more:
        more.write("stages: [{until: {step: 2}, set: {gconfig.max_new_tokens: 20}}, {set: {algorithm: gspo}}]\n")
    staged = call("explain", file)
    assert staged.out.startswith(f"{file}, stages[0]\n")
    assert f"\n\n{file}, stages[1]\n" in staged.out
    assert "max_new_tokens 20" in staged.out
    assert "SequenceRatio" in staged.out


def test_explain_names_what_is_no_algorithm(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("total_train_steps: 1\nactor: {use_sapo_loss: true, use_decoupled_loss: true}\n")
    refused(call("explain", "grop"), "grop: neither a YAML file nor a preset. Near: grpo. Presets: reinforce")
    refused(call("explain", "grpo", "--against", "dap"), "--against: 'dap' is not a preset. Near: dapo. Presets")
    refused(call("explain", tmp_path / "no.yaml"), "cannot read", "no.yaml", "No such file")
    refused(call("explain", file), "actor.use_sapo_loss: true with actor.use_decoupled_loss true")
    refused(call("explain", "grpo", "actor.eps_clap=1"), "actor.eps_clap: unknown key. Near: eps_clip")
