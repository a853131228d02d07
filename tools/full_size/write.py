#!/usr/bin/env python3
"""A diffusion model in its real size with seeded random weights, for checks against diffusers: nothing is fetched.

    tools/full_size/write.py OUT --model sdxl|flux|sd3-large|sd3-medium [--tiny]

    OUT/MODEL/                   a diffusers folder in bf16: 7 GB of SDXL, 33 of FLUX.1 dev, 28 and 17 of SD3.5 large and medium;
                                 its parts are links into OUT/parts, which models share (T5 is in three of them)
    OUT/MODEL.lora.safetensors   a LoRA in kohya's names and on the modules that kohya trains, none of its factors zero
    OUT/MODEL.COMPONENT.in.safetensors  what compare.py gives to each component: a picture of 1024x1024

OUT is best a folder in memory. Tokenizers are those of build/share/wick/tokenizers where they are, else small ones. With
--tiny all widths are those of tests/golden, to try the scripts on a CPU. Needs torch, diffusers, transformers and peft.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

import diffusers
import torch
import weights
from models import CONFIGS, MODELS, REAL_TOKENIZERS, SMALL_TOKENIZERS, inputs, lora_modules, rng
from safetensors.torch import save_file
from transformers import CLIPTextModel

TINY_FILE = 1 << 16  # bytes, so that models of --tiny come in several files too


def stored(module):
    """Its tensors as files have them: a shared one once, and CLIP's under the names that transformers 5 left behind."""
    tensors, seen = {}, set()
    for name, tensor in module.state_dict().items():
        if tensor.data_ptr() not in seen:
            tensors[name] = tensor
            seen.add(tensor.data_ptr())
    if isinstance(module, CLIPTextModel) and not any(name.startswith("text_model.") for name in tensors):
        tensors = {f"text_model.{name}": tensor for name, tensor in tensors.items()}
    return tensors


def write_part(folder, part, args):
    with torch.device(args.device):
        torch.set_default_dtype(torch.bfloat16)
        module = part.make()
        torch.set_default_dtype(torch.float32)
    module = part.randomise(module.to(torch.bfloat16), part.seed)
    folder.mkdir(parents=True)
    if part.kind in CONFIGS:
        module.config.architectures = [part.kind.__name__]
        module.config.save_pretrained(folder)
    else:
        module.save_config(folder)
    stem = "model" if part.kind in CONFIGS else "diffusion_pytorch_model"
    written = weights.write(folder, stem, stored(module), TINY_FILE if args.tiny else weights.LARGEST)
    print(f"{part.seed}: {written}", flush=True)


def bytes_of(part):
    with torch.device("meta"):
        return 2 * sum(p.numel() for p in part.make().parameters())


def write_parts(args, model):
    """What is not there yet; a part that broke off lies under another name."""
    folders = {name: args.out / "parts" / part.seed.replace(" ", "-") for name, part in model.parts.items()}
    missing = {name: folder for name, folder in folders.items() if not folder.exists()}
    needed = sum(bytes_of(model.parts[name]) for name in missing)
    free = shutil.disk_usage(args.out).free
    if needed > free:
        sys.exit(f"{args.out}: needs {needed / 1e9:.1f} GB for {', '.join(missing)}, found {free / 1e9:.1f} free")
    for name, folder in missing.items():
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        write_part(unfinished, model.parts[name], args)
        unfinished.rename(folder)
    return folders


def write_tokenizer(folder, name):
    found = REAL_TOKENIZERS / name if (REAL_TOKENIZERS / name).exists() else SMALL_TOKENIZERS[name]
    shutil.copytree(found, folder, ignore=shutil.ignore_patterns("ids.json"))  # a golden


def write_model(folder, model, parts):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    index = {"_class_name": model.pipeline, "_diffusers_version": diffusers.__version__,
             "scheduler": ["diffusers", type(model.scheduler).__name__]}
    for name, part in model.parts.items():
        (folder / name).symlink_to(os.path.relpath(parts[name], folder))
        index[name] = ["transformers" if part.kind in CONFIGS else "diffusers", part.kind.__name__]
    for name, kind in model.tokenizers.items():
        write_tokenizer(folder / name, kind)
        index[name] = ["transformers", "T5TokenizerFast" if kind == "t5" else "CLIPTokenizer"]
    model.scheduler.save_pretrained(folder / "scheduler")
    (folder / "model_index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def write_lora(file, model):
    with torch.device("meta"):
        denoiser = model.parts[model.denoiser].make()
    shapes = {name: p.shape for name, p in denoiser.named_parameters()}
    tensors, modules = {}, lora_modules(denoiser)
    for base, (parts, _) in modules.items():
        rows, columns = sum(shapes[part + ".weight"][0] for part in parts), shapes[parts[0] + ".weight"][1]
        # Small beside the base weights, as in real files; a strong one makes the gradients ill-conditioned.
        for factor, shape, gain in ("down", (model.rank, columns), 1), ("up", (rows, model.rank), 0.25):
            name = f"{base}.lora_{factor}.weight"
            tensors[name] = torch.randn(shape, generator=rng(f"full size {name}")) * gain * shape[1] ** -0.5
        tensors[base + ".alpha"] = torch.tensor(model.alpha)
    save_file(tensors, file)
    count = sum(t.numel() for t in tensors.values())
    print(f"LoRA: {len(modules)} modules, {count / 1e6:.1f} M parameters", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="sdxl", choices=list(MODELS))
    parser.add_argument("--tiny", action="store_true", help="the widths of tests/golden")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.use_deterministic_algorithms(False)  # what the goldens want; nothing here depends on it
    model = MODELS[args.model](args.tiny)
    args.out.mkdir(parents=True, exist_ok=True)
    write_lora(args.out / f"{args.model}.lora.safetensors", model)
    for component, tensors in inputs(model).items():
        save_file(tensors, args.out / f"{args.model}.{component}.in.safetensors")
    write_model(args.out / args.model, model, write_parts(args, model))


if __name__ == "__main__":
    main()
