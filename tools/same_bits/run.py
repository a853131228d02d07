#!/usr/bin/env python3
"""Whether two programs give the same bits: runs each with the models that ship with Wick, and compares every tensor that
they write (adapters, weights, states), every picture and every text.

    python tools/same_bits/run.py BEFORE/wick AFTER/wick [ROWS] [--device cpu|cuda]

ROWS is a regular expression on the rows' names. Ends with 1 where anything differs. Metadata are not compared."""
import argparse
import json
import math
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path


ROOT = Path(__file__).resolve().parents[2]
PICTURES = ["--model", "tiny", "--dataset", "data/tiny-style", "--batch-size", "2", "--lr", "1e-3"]
TEXT = ["--model", "tiny-llm", "--dataset", "data/tiny-pirate/train.jsonl", "--batch-size", "2", "--sequence-length", "512",
        "--lr", "1e-3"]
ODD = ["--accumulate", "2", "--ema", "0.99", "--warmup", "3", "--lr-schedule", "cosine"]
LORA = ["--rank", "5", "--alpha", "3", "--lora-dropout", "0.1"]
DRAW = ["generate", "--model", "tiny", "--prompt", "a red heart", "--steps", "6", "--seed", "3"]
ANSWER = ["generate", "--model", "tiny-llm", "--prompt", "Once upon a time", "--max-tokens", "40"]

# name: arguments; {out} is the row's folder, {of ROW} that of a row before it.
ROWS = {
    "lora": ["train", *PICTURES, *LORA, "--targets", "unet.*", "--steps", "12", "--output", "{out}"],
    "lora-odd": ["train", *PICTURES, *LORA, *ODD, "--targets", "*attn*", "--steps", "6", "--caption-dropout", "0.2", "--output", "{out}"],
    "lora-encoders": ["train", *PICTURES, *LORA, "--targets", "*", "--steps", "4", "--gradient-checkpointing", "--output", "{out}"],
    "lora-bf16": ["train", *PICTURES, "--bf16", "--steps", "6", "--output", "{out}"],
    "full": ["train", *PICTURES, "--train", "full", *ODD, "--steps", "4", "--output", "{out}"],
    "vae": ["train", *PICTURES, "--train", "vae", *ODD, "--steps", "4", "--output", "{out}"],
    "text-lora": ["train", *TEXT, *LORA, "--steps", "12", "--val", "data/tiny-pirate/val.jsonl", "--output", "{out}"],
    "text-lora-odd": ["train", *TEXT, *LORA, *ODD, "--targets", "q_proj", "--targets", "down_proj", "--steps", "6", "--output", "{out}"],
    "text-lora-q8": ["train", *TEXT, *LORA, "--quantize", "q8_0", "--steps", "6", "--output", "{out}"],
    "text-full": ["train", *TEXT, "--train", "full", *ODD, "--steps", "4", "--no-packing", "--output", "{out}"],
    "text-scratch": ["train", *TEXT, "--train", "full", "--from-scratch", "--steps", "4", "--output", "{out}"],
    "resumed": ["train", "--config", "{of lora}/config.toml", "--output", "{of lora}", "--resume", "--steps", "20"],
    "draw": [*DRAW, "--out", "{out}/picture.png"],
    "draw-ddim": [*DRAW, "--sampler", "ddim", "--negative", "a star", "--width", "96", "--height", "64", "--out", "{out}/picture.png"],
    "draw-lora": [*DRAW, "--lora", "{of lora}/lora.safetensors:0.7", "--bf16", "--out", "{out}/picture.png"],
    "answer": ANSWER,
    "answer-sampled": [*ANSWER, "--temperature", "0.8", "--seed", "7"],
    "answer-lora": [*ANSWER, "--lora", "{of text-lora}/lora", "--temperature", "0"],
    "merge-text": ["merge", "--model", "tiny-llm", "--lora", "{of text-lora}/lora", "--output", "{out}/merged"],
    "convert": ["convert", "--model", "tiny-llm", "--output", "{out}/model.gguf"],
}


def flow_rows(family, quantize="nf4 int8 fp8"):
    """A rectified flow's: each kind of adapter and of placement, files in every layout, pictures, and its transformer alone."""
    model = ["--model", f"tiny-{family}"]
    train = ["train", *model, "--dataset", "data/tiny-style", "--batch-size", "2", "--lr", "1e-3", "--resolution", "64", "--output", "{out}"]
    draw = ["generate", *model, "--prompt", "a red heart", "--steps", "3", "--seed", "3", "--width", "64", "--height", "64", "--out", "{out}/picture.png"]
    lora = "{of FAMILY-lora}/lora.safetensors".replace("FAMILY", family)
    part = f"{{part {family}}}"
    single = "{of FAMILY-single}/model.safetensors".replace("FAMILY", family)
    rows = {
        "lora": [*train, *LORA, "--steps", "6"],
        "resumed": ["train", "--config", "{of FAMILY-lora}/config.toml", "--output", "{of FAMILY-lora}", "--resume", "--steps", "9"],
        "odd": [*train, *LORA, *ODD, "--steps", "4", "--caption-dropout", "0.2", "--gradient-checkpointing", "--bf16"],
        "encoders": [*train, "--rank", "3", "--steps", "3", "--targets", "transformer.*", "--targets", "text_encoder.*"],
        "offloaded": [*train, *LORA, "--steps", "3", "--stream-blocks", "all"],
        "full": [*train, "--train", "full", *ODD, "--steps", "2"],
        "vae": [*train, "--train", "vae", "--steps", "2"],
        "draw": draw,
        "draw-bf16": [*draw, "--bf16", "--sampler", "dpmpp-2m"],
        "draw-lora": [*draw, "--lora", lora + ":0.7"],
        "draw-offloaded": [*draw, "--stream-blocks", "all"],
        "merge": ["merge", *model, "--lora", lora, "--output", "{out}/merged"],
        "fp8-file": ["convert", *model, "--dtype", "fp8", "--output", "{out}/model.safetensors"],
        "single": ["merge", *model, "--transformer", part, "--lora", lora, "--output", "{out}/model.safetensors"],
        "draw-single": [*draw, "--transformer", single],
        "train-single": [*train, *LORA, "--transformer", single, "--steps", "3"],
        "fp8-single": ["convert", "--model", single, "--dtype", "fp8", "--output", "{out}/model.safetensors"],
        "draw-fp8-single": [*draw, "--transformer", "{of FAMILY-fp8-single}/model.safetensors"],
        "int8-file": ["convert", *model, "--dtype", "int8", "--output", "{out}/model"],
        "forward": ["forward", *model, "--component", "transformer", "--in", f"{{in {family}}}", "--out", "{out}/out.safetensors", "--grad"],
        "forward-lora": ["forward", *model, "--component", "transformer", "--lora", lora, "--in", f"{{in {family}}}", "--out", "{out}/out.safetensors", "--grad"],
    }
    for kind in ("dora", "loha", "lokr", "dora-loha", "dora-lokr"):
        rows[kind] = [*train, "--rank", "3", "--adapter", kind, "--steps", "3"]
        rows[f"draw-{kind}"] = [*draw, "--lora", f"{{of {family}-{kind}}}/lora.safetensors"]
    for kind in quantize.split():
        rows[f"{kind}-train"] = [*train, *LORA, "--steps", "3", "--quantize", kind]
        rows[f"{kind}-draw"] = [*draw, "--quantize", kind]
    for program in ("kohya", "comfy", "diffusers"):
        rows[f"to-{program}"] = ["convert", *model, "--lora", lora, "--to", program, "--output", "{out}/lora.safetensors"]
    return {f"{family}-{name}": [word.replace("FAMILY", family) for word in row] for name, row in rows.items()}


def gguf_rows():
    """A language model's GGUF file in each of its types: made, answered from, trained on, merged into."""
    rows = {}
    for dtype in ("f16", "q8_0", "q6_k", "q5_k", "q4_k", "q4_0"):
        file = f"{{of gguf-{dtype}}}/model.gguf"
        answer = [file if word == "tiny-llm" else word for word in ANSWER]
        rows |= {f"gguf-{dtype}": ["convert", "--model", "tiny-llm", "--dtype", dtype, "--output", "{out}/model.gguf"],
                 f"gguf-{dtype}-answer": answer}
    text = [word if word != "tiny-llm" else "{of gguf-q8_0}/model.gguf" for word in TEXT]
    rows["gguf-train"] = ["train", *text, *LORA, "--steps", "4", "--output", "{out}"]
    rows["gguf-merge"] = ["merge", "--model", "{of gguf-q8_0}/model.gguf", "--lora", "{of text-lora}/lora", "--output", "{out}/merged.gguf"]
    rows["gguf-lora"] = ["convert", "--model", "tiny-llm", "--lora", "{of text-lora}/lora", "--to", "gguf", "--output", "{out}/lora.gguf"]
    return rows


ROWS |= flow_rows("flux") | flow_rows("sd3") | gguf_rows()
# Inputs of a transformer alone, {name: shape}, with those of `target` for the gradients.
INPUTS = {
    "flux": {"hidden_states": [2, 12, 64], "encoder_hidden_states": [2, 5, 128], "pooled_projections": [2, 48], "timestep": [2], "guidance": [2], "img_ids": [12, 3],
             "txt_ids": [5, 3], "target": [2, 12, 64]},
    "sd3": {"hidden_states": [2, 16, 6, 8], "encoder_hidden_states": [2, 5, 128], "pooled_projections": [2, 112], "timestep": [2], "target": [2, 16, 6, 8]},
}


def write_inputs(path, shapes):
    draw, header, data = random.Random(7), {}, b""
    for name, shape in shapes.items():
        count = math.prod(shape)
        values = [float(k % 4) for k in range(count)] if name.endswith("_ids") else [draw.random() if len(shape) == 1 else draw.gauss(0, 1) for _ in range(count)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack(f"<{count}f", *values)
    path.write_bytes(packed(header, data))
    return str(path)


def write_part(path, family):
    """The transformer alone. A file of SD3's has its table of positions, which the model's folder leaves out."""
    data = (ROOT / f"models/tiny-{family}/transformer/diffusion_pytorch_model.safetensors").read_bytes()
    if family == "sd3":
        length = int.from_bytes(data[:8], "little")
        header, data, draw = json.loads(data[8:8 + length]), data[8 + length:], random.Random(5)
        shape = [1, 24 * 24, 128]
        header["pos_embed.pos_embed"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * math.prod(shape)]}
        data = packed(header, data + struct.pack(f"<{math.prod(shape)}f", *(draw.uniform(-1, 1) for _ in range(math.prod(shape)))))
    path.write_bytes(data)
    return str(path)


def packed(header, data):
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    return struct.pack("<Q", len(words)) + words + data


def run(program, folder, name, arguments, device):
    out = folder / name
    out.mkdir()
    arguments = [write_part(folder / "part.safetensors", a[6:-1]) if a.startswith("{part ") else a for a in arguments]
    arguments = [write_inputs(folder / "in.safetensors", INPUTS[a[4:-1]]) if a.startswith("{in ") else a for a in arguments]
    filled = [re.sub(r"\{of ([a-z0-9_-]+)\}", lambda m: str(folder / m[1]), a).replace("{out}", str(out)) for a in arguments]
    environment = dict(os.environ, OMP_NUM_THREADS="2", SOURCE_DATE_EPOCH="0", WICK_MODELS=str(ROOT / "models"))
    done = subprocess.run([program, *filled, *(["--device", device] if arguments[0] in ("train", "generate") else [])], cwd=ROOT,
                          env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{name}: {program} {' '.join(filled)}: exit {done.returncode}\n{done.stderr}")
    if arguments[0] == "generate":
        (out / "printed.txt").write_text("\n".join(line for line in done.stdout.splitlines() if "/s" not in line and " free" not in line and str(out) not in line))


def tensors(path):
    """name -> bytes; safetensors files are read here, so that no dtype is in the way."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {n: (i["dtype"], tuple(i["shape"]), data[8 + length + i["data_offsets"][0]:8 + length + i["data_offsets"][1]])
            for n, i in header.items()}


def without_texts(path):
    """The bytes of a file; of a PNG without its settings, which have paths and versions."""
    data = path.read_bytes()
    if path.suffix != ".png":
        return data
    kept, at = data[:8], 8
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at:at + 4], "big")
        if data[at + 4:at + 8] not in (b"tEXt", b"zTXt", b"iTXt"):
            kept += data[at:end]
        at = end
    return kept


def differences(a, b):
    if a.suffix != ".safetensors":
        return [] if without_texts(a) == without_texts(b) else ["its bytes"]
    x, y = tensors(a), tensors(b)
    return sorted(x.keys() ^ y.keys()) + [n for n in x.keys() & y.keys() if x[n] != y[n]]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("rows", nargs="?", default="")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    programs = [str(asked.before.resolve()), str(asked.after.resolve())]
    rows = re.compile(asked.rows)
    # What a row is made of comes with it.
    wanted = {n for n in ROWS if rows.search(n)}
    for _ in range(2):
        wanted |= {m for n in wanted for a in ROWS[n] for m in re.findall(r"\{of ([a-z0-9_-]+)\}", a)}
    bad = 0
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary) / "before", Path(temporary) / "after"]
        for folder in folders:
            folder.mkdir()
        for name in [n for n in ROWS if n in wanted]:
            for program, folder in zip(programs, folders):
                run(program, folder, name, ROWS[name], asked.device)
            # A row that is resumed writes where it was begun.
            wrote = name if any("{out}" in a for a in ROWS[name]) or ROWS[name][0] == "generate" else name.replace("resumed", "lora")
            compared = 0
            for a in sorted((folders[0] / wrote).rglob("*")):
                if a.suffix not in (".safetensors", ".png", ".gguf", ".txt") or a.name == "loss.png":
                    continue
                b = folders[1] / a.relative_to(folders[0])
                wrong = differences(a, b) if b.exists() else ["it is missing"]
                compared += 1
                if wrong:
                    bad += 1
                    print(f"{name}: {a.relative_to(folders[0])} differs in {', '.join(wrong[:5])}" + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""))
            print(f"{name}: {compared} files compared", flush=True)
            if compared == 0:
                raise SystemExit(f"{name}: nothing to compare")
    print("FAILED" if bad else "the same bits")
    sys.exit(1 if bad else 0)


main()
