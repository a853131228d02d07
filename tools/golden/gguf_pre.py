"""The ids that llama.cpp finds for texts under values of a GGUF file's tokenizer.ggml.pre.

    LLAMA_TOKENIZE=path/to/llama-tokenize python tools/golden/gguf_pre.py

writes tests/golden/tokenizers/pre.json: {"tokenizer", "texts", "ids": {pre: [ids of a text]}}. The vocabulary is that of
tests/golden/tokenizers/smollm. Needs gguf (requirements.txt) and llama.cpp's own llama-tokenize.
"""

import json
import os
import random
import subprocess
import tempfile
from pathlib import Path

from gguf import GGUFWriter

from golden import ROOT

TOKENIZER = "smollm"
NAMES = ["default", "smaug-bpe", "llama-bpe", "gpt-2"]
TEXTS = 120
PARTS = ["Hello", "world", "don't", "I'LL", "it's", " ", "  ", "   ", "\n", "\n\n", "\t", "123", "1234567", "12", "٣٤٥٦",
         "½", "$", "+", "<=>", "^~|", "`", "``x`", "!?", "...", "—", "«»", "日本語", "。", "naïve", "é", "x²", "_a_",
         "{}", "[0]", "//", "@", "#", "%", "&", "*", "€", "👍🏽", "a.b", "3.14", "1,000,000", " $5", "\u00a0", "x\u0301"]
PLAIN, CONTROL, OWN, UNUSED = 1, 3, 4, 5  # of token_type


def write_vocabulary(path, pre):
    spec = json.loads((ROOT / "tokenizers" / TOKENIZER / "tokenizer.json").read_text())
    entries = {i: (text, PLAIN) for text, i in spec["model"]["vocab"].items()}
    for token in spec["added_tokens"]:
        entries[token["id"]] = (token["content"], CONTROL if token["special"] else OWN)
    rows = [entries.get(i, (f"[PAD{i}]", UNUSED)) for i in range(max(entries) + 1)]
    file = GGUFWriter(path, "llama")
    file.add_context_length(128)
    file.add_embedding_length(64)
    file.add_block_count(2)
    file.add_feed_forward_length(96)
    file.add_head_count(4)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre(pre)
    file.add_token_list([text for text, _ in rows])
    file.add_token_types([kind for _, kind in rows])
    file.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]])
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def ids_of(model, text, folder):
    file = folder / "text"
    file.write_bytes(text.encode())
    command = [os.environ["LLAMA_TOKENIZE"], "-m", model, "-f", file, "--ids", "--no-bos", "--no-parse-special",
               "--no-escape", "--log-disable"]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def main():
    draw = random.Random(5)
    texts = ["".join(draw.choice(PARTS) for _ in range(draw.randint(1, 9))) for _ in range(TEXTS)]
    ids = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for pre in NAMES:
            model = folder / "vocabulary.gguf"
            write_vocabulary(model, pre)
            ids[pre] = [ids_of(model, text, folder) for text in texts]
    found = {"tokenizer": TOKENIZER, "texts": texts, "ids": ids}
    (ROOT / "tokenizers" / "pre.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
