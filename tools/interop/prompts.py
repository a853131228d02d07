"""Prompts as ComfyUI's own tokenizers read them, beside what Wick reads and says.

    python tools/interop/prompts.py --wick build/release/bin/wick --comfyui ~/ComfyUI [--output tools/interop/prompts.md]

has three tables, and ends with 1 where a row differs:

    syntax      ids and weights of tests/golden/prompts/prompts.json, which tests/text/prompt_syntax.cpp holds Wick to, for CLIP and T5
    embeddings  where a word with vectors stands in a prompt: the pieces of tests/text/prompt_syntax.cpp (EmbeddingsOfALora)
    told        what ComfyUI takes for more than words, and whether `wick generate` says that it reads it as words. Other programs' syntax
                is told as well, although it is words to ComfyUI.
"""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import CLIPTokenizer, PreTrainedTokenizerFast

from programs import Absent, ComfyUI

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
FOX = 2  # vectors of the word "fox"

# {prompt: pieces}; None stands for the vectors. The same rows are in tests/text/prompt_syntax.cpp.
EMBEDDINGS = {
    "embedding:fox": [None],
    "a embedding:fox b": ["a", None, "b"],
    "a\nembedding:fox\nb": ["a", None, "b"],
    "a\tembedding:fox b": ["a", None, "b"],
    "a embedding:fox, b": ["a", None, ", b"],
    "(embedding:fox:1.3) b": [(None, 1.3), " b"],
    "a (red embedding:fox:0.5) b": ["a ", ("red", 0.5), (None, 0.5), " b"],
    "(a)embedding:fox": [("a", 1.1), None],
    "embedding:fox embedding:fox": [None, None],
    "embedding:fox[b]": [None, "[b]"],
}
# Prompts, and whether they have syntax of another program than ComfyUI, which Wick tells too.
PROMPTS = {
    "a red fox": False,
    "a (red:1.3) fox": False,
    "((red)) fox": False,
    "(a (red) fox:1.3)": False,
    "(red: 1.3 ) fox": False,
    "(red:.5) fox": False,
    "(red:1e-1) fox": False,
    "(red:-1) fox": False,
    "fox \\(animal\\)": False,
    "a \\(red:1.3\\) fox": False,
    "a \\\\(red\\\\) fox": False,
    "back\\slash": False,
    "embedding:fox": False,
    "a embedding:fox, b": False,
    "a\tembedding:fox": False,
    "(a)embedding:fox": False,
    "xembedding:fox": False,
    "a,embedding:fox": False,
    "a BREAK b": True,
    "a AND b": True,
    "a {red|blue} fox": True,
    "a __colour__ fox": True,
    "a [cat:dog:0.5]": True,
    "a [cat|dog]": True,
    "<lora:name:0.8> fox": True,
    "[a] fox": False,
}
# ComfyUI weighs these, and Wick does not say so: "a fox (red)" is a common way to write.
UNTOLD = ["a fox (red)", "fox_(animal), snow", "(a:b) fox", "(red:-) fox"]


class Tokenizers:
    def __init__(self, comfy, embeddings):
        from comfy import sd1_clip

        class T5:
            @staticmethod
            def from_pretrained(path):
                return PreTrainedTokenizerFast(tokenizer_file=str(Path(path) / "tokenizer.json"), eos_token="</s>")

        common = dict(embedding_directory=str(embeddings))
        clip = str(GOLDEN / "sdxl/tokenizer")
        self.l = sd1_clip.SDTokenizer(clip, tokenizer_class=CLIPTokenizer, **common)
        self.g = sd1_clip.SDTokenizer(clip, pad_with_end=False, embedding_key="clip_g", tokenizer_class=CLIPTokenizer, **common)
        self.t5 = sd1_clip.SDTokenizer(str(GOLDEN / "t5_tokenizer"), pad_with_end=False, embedding_key="t5xxl", tokenizer_class=T5,
                                       has_start_token=False, pad_to_max_length=False, max_length=99999999, min_length=1, **common)

    @staticmethod
    def read(tokenizer, prompt):
        """Ids, or "vector", and weights, chunk after chunk."""
        rows = [t for chunk in tokenizer.tokenize_with_weights(prompt) for t in chunk]
        return ["vector" if torch.is_tensor(t) else int(t) for t, _ in rows], [round(float(w), 6) for _, w in rows]


def of_golden(tokenizers):
    for row in json.loads((GOLDEN / "prompts/prompts.json").read_text()):
        weights, t5_weights = ([round(w, 6) for w in row[k]] for k in ("weights", "t5_weights"))
        same = [tokenizers.read(tokenizers.l, row["prompt"]) == (row["l"], weights), tokenizers.read(tokenizers.g, row["prompt"])[0] == row["g"],
                tokenizers.read(tokenizers.t5, row["prompt"]) == (row["t5"], t5_weights)]
        yield row["prompt"], same


def of_embeddings(tokenizers):
    """ComfyUI's tokens of the prompt, and the tokens of its pieces."""
    for prompt, pieces in EMBEDDINGS.items():
        for name in ("l", "t5"):
            tokenizer, ids, weights = getattr(tokenizers, name), [], []
            for piece in pieces:
                text, weight = piece if isinstance(piece, tuple) else (piece, 1.0)
                some = ["vector"] * FOX if text is None else tokenizer.tokenizer(text, add_special_tokens=False).input_ids
                ids += some
                weights += [weight] * len(some)
            found, found_weights = tokenizers.read(tokenizer, prompt)
            start = tokenizer.tokens_start
            yield prompt, name, found[start:start + len(ids)], ids, found_weights[start:start + len(ids)] == weights


def interprets(tokenizers, prompt):
    """Whether ComfyUI takes the prompt for more than its words."""
    ids, weights = tokenizers.read(tokenizers.l, prompt)
    plain = tokenizers.l.tokenizer(prompt).input_ids
    return ids[:len(plain)] != plain or any(w != 1 for w in weights)


def told(wick, prompt, out, *flags):
    command = [wick, "generate", "--model", "tiny", "--device", "cpu", "--steps", "1", "--width", "64", "--height", "64", "--overwrite", "--out", out,
               "--prompt", prompt, *flags]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    return "\n".join(l for l in done.stderr.splitlines() if "read as plain words" in l or done.returncode != 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--wick", required=True, type=Path, help="the program")
    parser.add_argument("--comfyui", required=True, type=Path, help="checkout of ComfyUI")
    parser.add_argument("--output", type=Path, help="the tables as Markdown")
    args = parser.parse_args()
    try:
        comfy = ComfyUI(args.comfyui)
    except (Absent, ImportError) as e:
        sys.exit(f"ComfyUI is not there: {e}")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    lines, failed = [], 0

    def add(cells, agrees):
        nonlocal failed
        failed += not agrees
        cell = lambda c: json.dumps(c, ensure_ascii=False).replace("|", "\\|") if not isinstance(c, str) else c.replace("|", "\\|")
        lines.append("| " + " | ".join([*map(cell, cells), "" if agrees else "DIFFERS"]) + " |")
        print(lines[-1], flush=True)

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "embeddings").mkdir()
        save_file({"clip_l": torch.zeros(FOX, 768), "clip_g": torch.zeros(FOX, 768), "t5xxl": torch.zeros(FOX, 768)},
                  folder / "embeddings/fox.safetensors")
        tokenizers = Tokenizers(comfy, folder / "embeddings")
        import comfyui_version
        lines += [f"# Prompts in ComfyUI {comfyui_version.__version__}, by tools/interop/prompts.py", "", "## syntax", "", "| prompt | CLIP-L | bigG | T5 | |", "|---|---|---|---|---|"]
        for prompt, same in of_golden(tokenizers):
            add([json.dumps(prompt[:80], ensure_ascii=False), *("same" if s else "other" for s in same)], all(same))
        lines += ["", "## embeddings", "", "| prompt | encoder | ComfyUI | pieces | |", "|---|---|---|---|---|"]
        for prompt, name, found, expected, weights in of_embeddings(tokenizers):
            add([json.dumps(prompt), name, found, expected], found == expected and weights)
        lines += ["", "## told", "", "| prompt | in ComfyUI | Wick, plain | Wick, comfyui | |", "|---|---|---|---|---|"]
        for prompt in [*PROMPTS, *UNTOLD]:
            more, out = interprets(tokenizers, prompt), folder / "x.png"
            plain, comfyui = told(args.wick, prompt, out), told(args.wick, prompt, out, "--prompt-syntax", "comfyui")
            elsewhere = PROMPTS.get(prompt, False)
            # What ComfyUI interprets, Wick's comfyui syntax reads, or refuses: an embedding that no --lora holds.
            agrees = bool(plain) == (elsewhere or (more and prompt not in UNTOLD))
            agrees &= ("embedding" in comfyui if more and "embedding:" in prompt else bool(comfyui) == elsewhere)
            add([json.dumps(prompt), "more than words" if more else "words", plain, comfyui], agrees)
    if args.output:
        args.output.write_text("\n".join(lines) + "\n")
    print(f"{failed} rows differ", file=sys.stderr)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
