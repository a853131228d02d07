"""SDXL with all widths halved and random weights, as a diffusers folder: 0.65 G parameters, for timing only.

    python bench/peers/make_half_sdxl.py OUT_DIR [--dtype float32]

The UNet keeps SDXL's depths (transformers of 2 and 10 layers); heads are 64 wide where there is attention. The text
encoders have halved widths, two layers and the golden vocabulary; tokenizers, scheduler and VAE are the golden ones.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import torch
from diffusers import UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "golden"))
from sdxl_model import SDXL_TE1, SDXL_TE2, SDXL_UNET  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "sdxl"
UNET = SDXL_UNET | dict(
    addition_time_embed_dim=128, attention_head_dim=[5, 5, 10], block_out_channels=[160, 320, 640],
    cross_attention_dim=1024, projection_class_embeddings_input_dim=640 + 6 * 128)
TE1 = SDXL_TE1 | dict(hidden_size=384, intermediate_size=1536, num_attention_heads=6, num_hidden_layers=2,
                      projection_dim=384)
TE2 = SDXL_TE2 | dict(hidden_size=640, intermediate_size=2560, num_attention_heads=10, num_hidden_layers=2,
                      projection_dim=640)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    args = parser.parse_args()
    torch.manual_seed(0)
    args.out.mkdir(parents=True, exist_ok=True)
    for part in "vae", "tokenizer", "tokenizer_2", "scheduler":
        shutil.copytree(GOLDEN / part, args.out / part, dirs_exist_ok=True)
    shutil.copy(GOLDEN / "model_index.json", args.out)
    vocab = json.loads((GOLDEN / "tokenizer" / "vocab.json").read_text(encoding="utf-8"))
    dtype = getattr(torch, args.dtype)
    for name, make in [
        ("text_encoder", lambda: CLIPTextModel(CLIPTextConfig(**TE1 | dict(vocab_size=len(vocab))))),
        ("text_encoder_2", lambda: CLIPTextModelWithProjection(CLIPTextConfig(**TE2 | dict(vocab_size=len(vocab))))),
        ("unet", lambda: UNet2DConditionModel(**UNET)),
    ]:
        model = make().to(dtype)
        print(name, f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters", flush=True)
        model.save_pretrained(args.out / name, safe_serialization=True)


if __name__ == "__main__":
    main()
