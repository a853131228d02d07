#!/usr/bin/env python3
"""A language model in its real shape with random weights, for benchmarks: a transformers folder in bf16.

    tools/full_size/write_llm.py OUT [--model 7b|nemo] [--tiny]

Mistral 7B's is 14.5 GB, Mistral Nemo's 24.5 GB.

Weights are seeded normals of 0.02, the same ones for all matrices of a shape, and norms 1; the tokenizer is byte-level BPE
with as many tokens as the model has (Nemo's with 32000), of which the words are made up. OUT is best a folder in memory. With --tiny it is a model of 2 small
layers, to try what reads it on a CPU. Needs torch, transformers and tokenizers.
"""

import argparse
import functools
import itertools
import string
from pathlib import Path

import torch
import weights
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import MistralConfig, MistralForCausalLM

DEVIATION = 0.02
MISTRAL_7B = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000}
FULL = {"7b": MISTRAL_7B, "nemo": MISTRAL_7B | {"hidden_size": 5120, "num_hidden_layers": 40, "vocab_size": 131072}}
LARGEST_VOCABULARY = 32000  # of the tokenizer
TINY = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 2048}


def shapes(config):
    with torch.device("meta"):
        model = MistralForCausalLM(config)
    return {name: list(t.shape) for name, t in model.state_dict().items()}


@functools.cache
def values(shape):
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.empty(shape, device=device).normal_(0, DEVIATION, generator=torch.Generator(device).manual_seed(0))
    return x.bfloat16()


def write_tokenizer(file, size):
    """Words of two, three and four letters, each made of a shorter one and a letter."""
    vocabulary = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges, letters = [], string.ascii_lowercase
    words = ("".join(w) for n in (2, 3, 4) for w in itertools.product(letters, repeat=n))
    for word in itertools.islice(words, size - len(vocabulary)):
        merges.append((word[:-1], word[-1]))
        vocabulary.append(word)
    model = models.BPE(vocab={word: i for i, word in enumerate(vocabulary)}, merges=merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(file))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="7b", choices=list(FULL))
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    config = MistralConfig(**(TINY if args.tiny else FULL[args.model]), max_position_embeddings=32768, sliding_window=None,
                           rope_theta=1e6, tie_word_embeddings=False, dtype="bfloat16",
                           architectures=["MistralForCausalLM"])
    args.out.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(args.out)
    write_tokenizer(args.out / "tokenizer.json", min(config.vocab_size, LARGEST_VOCABULARY))
    tensors = {name: values(tuple(shape)) for name, shape in shapes(config).items()}
    print(weights.write(args.out, "model", tensors), flush=True)


if __name__ == "__main__":
    main()
