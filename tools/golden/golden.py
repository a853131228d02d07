"""Where the goldens go, how their random numbers are drawn and how they are written."""

import json
import os
import zlib
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import diffusers  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
diffusers.logging.set_verbosity_error()

ROOT = Path(os.environ.get("WICK_GOLDEN_OUT", Path(__file__).resolve().parents[2] / "tests" / "golden"))
MODEL = ROOT / "sdxl"
LORA_UNET = ROOT / "lora_unet.safetensors"
LORA_TE = ROOT / "lora_te.safetensors"
LORA_LOCON = ROOT / "lora_locon.safetensors"


def rng(name, device="cpu"):
    """A generator of its own for each purpose, so that a new golden leaves existing ones unchanged."""
    return torch.Generator(device).manual_seed(zlib.crc32(name.encode()))


def randn(name, *shape):
    return torch.randn(*shape, generator=rng(name))


def save(path, tensors, metadata=None):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: v.detach().contiguous().clone() for k, v in tensors.items()}, path, metadata=metadata)
    if metadata:
        sort_metadata(path)
    size = path.stat().st_size
    assert size < 1 << 20, f"{path} has {size} bytes; a golden stays under 1 MiB"
    print(f"{path.relative_to(ROOT)}  {size} bytes, {len(tensors)} tensors")


def sort_metadata(path):
    """safetensors writes the metadata in an order of chance, and PEFT where this checkout lies."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).replace(f"{ROOT}/", "").encode()
    path.write_bytes(data[:8] + text.ljust(end - 8) + data[end:])


def load(path):
    return load_file(path)
