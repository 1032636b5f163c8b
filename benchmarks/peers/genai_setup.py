"""Sets up onnxruntime-genai in build/peers/genai and exports the demo model to int4 with its own
builder, once."""

import json
import subprocess
import sys
import venv
from pathlib import Path

PACKAGES = (
    "torch==2.13.0",
    "onnxruntime==1.32.0",
    "onnxruntime-genai==0.18.0",
    "transformers==5.24.0",
    "onnx==1.23.2",
    "onnx-ir==1.1.0",
)
THREADS = 2


def prepare(root: Path, gguf: Path) -> tuple[Path, Path]:
    """Returns (python of the peer's venv, its int4 model folder)."""
    home = root / "genai"
    python = home / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(home / "venv", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    checkpoint = root / "hf-fp32"
    if not (checkpoint / "config.json").exists():
        script = Path(__file__).with_name("hf_checkpoint.py")
        subprocess.run([sys.executable, script, gguf, checkpoint], check=True)
    model = home / "int4"
    if not (model / "genai_config.json").exists():
        command = [python, "-m", "onnxruntime_genai.models.builder", "-i", checkpoint.resolve()]
        command += ["-o", model.resolve(), "-p", "int4", "-e", "cpu", "-c", home / "cache"]
        subprocess.run(command, check=True, cwd=home, stdout=subprocess.DEVNULL)
    # as built it uses one core: give it the machine's
    path = model / "genai_config.json"
    config = json.loads(path.read_text())
    config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = THREADS
    path.write_text(json.dumps(config, indent=2))
    return python, model
