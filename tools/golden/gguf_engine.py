"""What llama.cpp makes of the GGUF files that `wick convert` writes.

    WICK=build/release/bin/wick python tools/golden/gguf_engine.py [--keep]

makes a small random model, gives it the config and the tokenizer of each family, converts it to every type, and compares
llama.cpp with Wick on the same file: logits, greedy ids, and the ids of 10,000 lines. It ends with an error if ids
differ, and writes tests/golden/gguf_engine/ (with --keep the model stays as it is):

    model.safetensors    the weights of all families: biases, norms of heads and a head are there for those that ask
    families.json        {family: {"tokenizer", "config"}}
    ids.json             [{family, dtype, prompt, prompt_ids, ids}]: of llama.cpp, greedy, of F16 and Q8_0 files

llama.cpp rounds activations to the type it multiplies with (8 bits beside blocks): a greedy id is compared where no
call is closer than that may decide. Needs llama-cpp-python 0.3.36 (which builds llama.cpp), beside requirements.txt.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import numpy as np
import torch
from llama_cpp import llama_cpp as engine
from safetensors.numpy import load_file, save_file
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

import llm_lines
from golden import ROOT, rng, save

OUT = ROOT / "gguf_engine"
WICK = os.environ.get("WICK", "build/release/bin/wick")
TYPES = ["f32", "f16", "bf16", "q8_0", "q4_0"]
TOKENS = 12
KEPT = 4  # prompts of a row
CLEAR = 0.06  # of the largest logit: the least distance from the likeliest token to the next
TOLERANCE = {"f32": 1e-5, "f16": 3e-3, "bf16": 3e-2, "q8_0": 0.1, "q4_0": 0.1}  # of the largest logit
PROMPTS = ["Once upon a time", "The capital of France is", "  Grüße, 12 mal 345!\n\n\tif x:", "你好 世界 👨‍👩‍👧 naïve",
           "def f(x):\n    return x ** 2\n", "The birds, every morning, and", "Please write", "x", "A robot, 1999:"]

SIZES = dict(vocab_size=1440, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-5)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)


def family(tokenizer, model_type, **config):
    return dict(tokenizer=tokenizer, config=dict(model_type=model_type, **SIZES) | config)


# The window is wider than the generated text: llama.cpp does not heed it.
FAMILIES = {
    "llama2": family("llama2", "llama"),
    "llama3": family("llama3", "llama", rope_theta=500000.0, rope_scaling=LLAMA3),
    "llama_linear": family("smollm", "llama", rope_scaling=dict(rope_type="linear", factor=2.5), attention_bias=True,
                           mlp_bias=True, tie_word_embeddings=True),
    "mistral": family("mistral3", "mistral", sliding_window=256),
    "mistral_tekken": family("tekken", "mistral", sliding_window=None, rope_theta=1000000.0),
    "qwen2": family("qwen3", "qwen2", rope_theta=1000000.0, tie_word_embeddings=True),
    "qwen3": family("qwen3", "qwen3", rope_theta=1000000.0),
}


def write_model():
    """Drawn so that often the likeliest token stands out: it is one of sixteen."""
    hidden, wide, width, vocab = (SIZES[k] for k in ("hidden_size", "intermediate_size", "head_dim", "vocab_size"))
    keys = SIZES["num_key_value_heads"] * width
    matrices = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (keys, hidden),
                "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (wide, hidden),
                "mlp.up_proj": (wide, hidden), "mlp.down_proj": (hidden, wide)}
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden, "self_attn.q_norm": width,
             "self_attn.k_norm": width}
    tensors = {}

    def draw(name, *shape, scale, around=0.0):
        tensors[name] = (around + scale * torch.randn(*shape, generator=rng("engine " + name))).to(torch.bfloat16)

    for table in ("model.embed_tokens", "lm_head"):
        draw(table + ".weight", vocab, hidden, scale=0.6)
        loud = torch.arange(vocab) // 16 == 300 // 16
        tensors[table + ".weight"][~loud] *= 0.25
    draw("model.norm.weight", hidden, scale=0.2, around=1.0)
    for layer in range(SIZES["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns) in matrices.items():
            draw(prefix + name + ".weight", rows, columns, scale=1.2 * columns ** -0.5)
            draw(prefix + name + ".bias", rows, scale=0.3)
        for name, size in norms.items():
            draw(prefix + name + ".weight", size, scale=0.2, around=1.0)
    save(OUT / "model.safetensors", tensors)
    (OUT / "families.json").write_text(json.dumps(FAMILIES, indent=1) + "\n")


def model_folder(name, at):
    at.mkdir()
    tensors = load_file(OUT / "model.safetensors")
    if FAMILIES[name]["config"].get("tie_word_embeddings"):
        del tensors["lm_head.weight"]  # a file's own head would count, whatever the config says
    save_file(tensors, at / "model.safetensors")
    (at / "config.json").write_text(json.dumps(FAMILIES[name]["config"]))
    for file in (ROOT / "tokenizers" / FAMILIES[name]["tokenizer"]).iterdir():
        if not file.name.startswith("ids") and file.name != "tokenizer.model":
            shutil.copy(file, at)


def wick(*arguments):
    return subprocess.run([WICK, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


class LlamaCpp:
    """One GGUF file, on the CPU, with a cache in f32."""

    def __init__(self, path):
        self.model = engine.llama_model_load_from_file(str(path).encode(), engine.llama_model_default_params())
        assert self.model, path
        self.vocabulary = engine.llama_model_get_vocab(self.model)
        self.size = engine.llama_vocab_n_tokens(self.vocabulary)
        marks = engine.LLAMA_TOKEN_ATTR_USER_DEFINED | engine.LLAMA_TOKEN_ATTR_UNKNOWN | engine.LLAMA_TOKEN_ATTR_CONTROL
        self.marked = [engine.llama_vocab_get_text(self.vocabulary, i).decode() for i in range(self.size)
                       if engine.llama_vocab_get_attr(self.vocabulary, i) & marks]

    def close(self):
        engine.llama_model_free(self.model)

    def tokenize(self, text, add_special=True, parse_special=True):
        data = text.encode()
        ids = (engine.llama_token * (len(data) + 8))()
        count = engine.llama_tokenize(self.vocabulary, data, len(data), ids, len(ids), add_special, parse_special)
        assert count >= 0, count
        return ids[:count]

    def logits(self, ids, more=0):
        """The logits of each token, and of `more` likeliest ones behind them; with all ids."""
        parameters = engine.llama_context_default_params()
        parameters.n_ctx, parameters.n_threads = 256, 1
        parameters.type_k = parameters.type_v = 0  # f32
        parameters.flash_attn_type = engine.LLAMA_FLASH_ATTN_TYPE_DISABLED  # which rounds to f16
        context = engine.llama_init_from_model(self.model, parameters)
        ids, rows = list(ids), []
        for at in range(len(ids) + more):
            if at == len(ids):
                ids.append(int(rows[-1].argmax()))
            assert engine.llama_decode(context, engine.llama_batch_get_one((engine.llama_token * 1)(ids[at]), 1)) == 0
            row = engine.llama_get_logits_ith(context, -1)
            rows.append(np.ctypeslib.as_array(row, (self.size,)).copy())
        engine.llama_free(context)
        return ids, np.stack(rows)


def lines():
    return [line.decode(errors="replace") for line in llm_lines.lines(llm_lines.load())]


def is_odd(line, name, model):
    """Whether llama.cpp has rules of its own for it: it knows no NFC, its Tekken knows no marks and no case beyond ASCII,
    tokens that a user defined strip no spaces, and with SentencePiece count as control tokens, as <unk> does."""
    letters = name == "mistral_tekken" and any(unicodedata.category(c)[0] in "ML" and c > "~" for c in line)
    return letters or not unicodedata.is_normalized("NFC", line) or any(text in line for text in model.marked)


def compare_lines(name, model):
    """Lines of other ids than with HF tokenizers, or with SentencePiece where that has the rules."""
    folder = ROOT / "tokenizers" / FAMILIES[name]["tokenizer"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encode = lambda line: tokenizer.encode(line, add_special_tokens=False).ids
    if (folder / "tokenizer.model").exists():
        encode = SentencePieceProcessor(model_file=str(folder / "tokenizer.model")).encode
    compared = [line for line in lines() if not is_odd(line, name, model)]
    differ = [line for line in compared if model.tokenize(line, False) != encode(line)]
    for line in differ[:3]:
        print(f"  {line[:60]!r}: {model.tokenize(line, False)[:24]}", encode(line)[:24])
    print(f"{name:15} {len(differ)} of {len(compared)} lines have other ids than with the tokenizer's own library",
          flush=True)
    return len(differ)


def wick_logits(path, ids, folder):
    save_file({"input_ids": np.array([ids], dtype=np.int64)}, folder / "in.safetensors")
    wick("forward", "--model", path, "--in", folder / "in.safetensors", "--out", folder / "out.safetensors", "--overwrite")
    return load_file(folder / "out.safetensors")["logits"][0]


def compare_type(name, dtype, model, path, folder):
    rows, errors, failed = [], [], 0
    for prompt in PROMPTS + [line for line in lines() if 3 < len(line) < 40 and "\0" not in line]:
        if is_odd(prompt, name, model):
            continue
        prompt_ids = model.tokenize(prompt)
        ids, logits = model.logits(prompt_ids, TOKENS)
        largest = np.abs(logits).max()
        if len(errors) < 4:
            errors.append(np.abs(wick_logits(path, ids, folder) - logits).max() / largest)
        best = np.sort(logits[len(prompt_ids) - 1:-1], axis=1)
        if (best[:, -1] - best[:, -2]).min() < CLEAR * largest:
            continue
        answer = json.loads(wick("generate", "--model", path, "--prompt", prompt, "--temperature", 0, "--device", "cpu",
                                 "--max-tokens", TOKENS, "--json"))
        same = answer["ids"] == ids[len(prompt_ids):] and answer["prompt_tokens"] == len(prompt_ids)
        failed += not same
        rows.append(dict(family=name, dtype=dtype, prompt=prompt, prompt_ids=prompt_ids, ids=ids[len(prompt_ids):]))
        if len(rows) == KEPT:
            break
    failed += max(errors) > TOLERANCE[dtype] or not rows
    print(f"{name:15} {dtype:5} greedy ids of {len(rows)} prompts: {'FAILED' if failed else 'equal'}; logits within "
          f"{max(errors):.1e} of the largest", flush=True)
    return rows, failed


def compare(name, folder):
    model_folder(name, folder / name)
    rows, failed = [], 0
    for dtype in TYPES:
        path = folder / f"{name}-{dtype}.gguf"
        wick("convert", "--model", folder / name, "--output", path, "--dtype", dtype)
        model = LlamaCpp(path)
        new, wrong = compare_type(name, dtype, model, path, folder)
        rows += new if dtype in ("f16", "q8_0") else []
        failed += wrong
        if dtype == "f32":
            failed += compare_lines(name, model) > 0
        model.close()
    return rows, failed


def main():
    engine.llama_log_set(QUIET, None)
    if "--keep" not in sys.argv:
        write_model()
    rows, failed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for name in FAMILIES:
            new, wrong = compare(name, Path(folder))
            rows += new
            failed += wrong
    if failed:
        sys.exit(f"{failed} rows differ")
    (OUT / "ids.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")


QUIET = engine.llama_log_callback(lambda level, text, data: None)

if __name__ == "__main__":
    main()
