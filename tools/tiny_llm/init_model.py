#!/usr/bin/env python3
"""Writes the tiny language model as it is before training: a small Qwen 3 without weights, and its tokenizer.

    init_model.py DIR FILE.jsonl...    a tokenizer learnt from write_text.py's text, and all configurations

The tokenizer is byte-level BPE with Qwen 2's way of cutting words, and ChatML. The text has fewer words than the
vocabulary has tokens: each becomes a token, other words are spelt with parts. Sizes follow from what two cores can
train and a repository can hold: 2.9 M parameters are 5.8 MB in f16. All widths are whole blocks of every GGUF type.

Needs HF tokenizers; Wick itself never does.
"""

import json
import pathlib
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SIZE = 2048
SHAPE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512}
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
CHAT = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def texts(paths):
    for path in paths:
        for line in open(path, encoding="utf-8"):
            row = json.loads(line)
            yield row["text"] if "text" in row else "\n".join(m["role"] + "\n" + m["content"] for m in row["messages"])


def main():
    folder, sources = pathlib.Path(sys.argv[1]), sys.argv[2:]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=SIZE - len(CONTROL), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts(sources), trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in CONTROL])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)

    def write(name, value):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

    write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|im_end|>",
                                    "pad_token": "<|endoftext|>", "chat_template": CHAT})
    write("generation_config.json", {"eos_token_id": [tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>")]})
    write("config.json", {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "float16",
                          "vocab_size": tokenizer.get_vocab_size(), **SHAPE, "hidden_act": "silu", "rms_norm_eps": 1e-6,
                          "rope_theta": 10000.0, "attention_bias": False, "tie_word_embeddings": True,
                          "initializer_range": 0.02, "bos_token_id": None,
                          "eos_token_id": tokenizer.token_to_id("<|im_end|>")})
    print(f"{folder}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
