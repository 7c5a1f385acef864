"""GSM8K by any algorithm: the config decides.

usage: python3 examples/math/gsm8k_rl.py --config examples/math/gsm8k_grpo.yaml scheduler.type=local [key=value ...]
"""

import argparse
from pathlib import Path

from partita.cli import readable_errors
from partita.run import load_run_config
from partita.trainer import PPOTrainer


def main() -> None:
    """Load, train, say where the result is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("overrides", nargs="*", help="key=value, +key=value or ~key")
    args = parser.parse_args()
    with readable_errors():
        config = load_run_config([args.config], args.overrides).value
        PPOTrainer(config).train()


if __name__ == "__main__":
    main()
