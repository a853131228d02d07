"""Small tokenizers with the structure of the real families', and the ids of HF tokenizers and SentencePiece for 10,000 lines.

    python tools/golden/llm_lines.py && python tools/golden/llm_tokenizers.py [--keep]

writes tests/golden/tokenizers/FAMILY/ (with --keep the vocabularies stay and only ids.json is written): the files of a
transformers folder, and ids.json:

    special    a hash for every ten lines of encode(line), control tokens in the text recognised, <s> before it
    plain      the same of encode(line, add_special_tokens=False) with control tokens taken as text
    decoded    the same of the text that decode() gives for the plain ids
    lines      [index, special ids, plain ids] of every 97th line

Lines that are not UTF-8 are decoded with errors="replace"; SentencePiece gets their bytes. A hash is FNV-1a of 32 bits
over the ids, as four bytes each, little end first, and -1 behind each line (over the text's bytes and 0 for `decoded`).
"""

import io
import json
import shutil
import struct
import sys

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaTokenizer
from transformers.convert_slow_tokenizer import LlamaConverter

import llm_lines

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# Words that llm_lines has few of, so that vocabularies are not of its fragments alone.
PROSE = """Once upon a time there was a small house at the edge of a forest, and in it lived a girl who liked to count the
birds. Every morning she walked down to the river, sat on the same grey stone, and wrote what she had seen. The user asks
a question; the assistant answers it. You are a helpful assistant. What is the capital of France? The capital of France
is Paris. Please write a short story about a robot. Sure! Here is a story. Thank you very much for your help.
"""


def corpus():
    fragments = dict(llm_lines.load(), ranges=[(0x20, 0x7e)])  # not all of Han
    text = [line.decode(errors="replace") for line in llm_lines.lines(fragments)[::3]]
    return [t for t in text if t.strip()] + PROSE.splitlines() * 40


def sentencepiece_model(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([t.replace("\n", " ").replace("\0", " ") for t in corpus()]), model_writer=model,
        model_type="bpe", byte_fallback=True, split_digits=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, character_coverage=0.995,
        minloglevel=2, num_threads=1, **options)
    return model.getvalue()


def write(folder, name, text):
    (folder / name).write_text(text + "\n", encoding="utf-8")


def write_llama(folder, legacy, config, **options):
    """tokenizer.model, and the tokenizer.json that transformers makes of it."""
    (folder / "tokenizer.model").write_bytes(sentencepiece_model(**options))
    slow = LlamaTokenizer(str(folder / "tokenizer.model"), legacy=legacy)
    fast = LlamaConverter(slow).converted()
    # The file of the older kind has its space behind control tokens too, the newer only at the start of a text.
    fast.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    fast.save(str(folder / "tokenizer.json"), pretty=False)
    write(folder, "tokenizer_config.json", json.dumps(
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>",
         "eos_token": {"content": "</s>", "special": True}, "unk_token": "<unk>", "legacy": legacy, **config}))
    return fast


def write_byte_level(folder, splits, config, size, control, added=(), nfc=False, ignore_merges=False, bos=None,
                     use_regex=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps = [s if not isinstance(s, str) else pre_tokenizers.Split(Regex(s), "isolated") for s in splits]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    tokenizer.add_tokens(list(added))
    byte_level = processors.ByteLevel(trim_offsets=False)
    tokenizer.post_processor = byte_level if bos is None else processors.Sequence([
        byte_level, processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))])])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write(folder, "tokenizer_config.json", json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))


def write_llama2(folder):
    write_llama(folder, True, {}, vocab_size=1400)


def write_mistral3(folder):
    write_llama(folder, False, {}, vocab_size=1400, control_symbols=["[INST]", "[/INST]", "[TOOL_CALLS]"],
                user_defined_symbols=["<tool>", "<think>", "</think>", "hahaha"])


def write_llama3(folder):
    control = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    write_byte_level(folder, [LLAMA3], {"bos_token": control[0], "eos_token": "<|eot_id|>"}, 1400, control,
                     ignore_merges=True, bos=control[0])
    # A word that is a token although no merges lead to it: the case for ignore_merges.
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["model"]["merges"] = [m for m in tokenizer["model"]["merges"] if "".join(m) not in ("Ġriver", "Hello")]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    write(folder, "generation_config.json", json.dumps({"eos_token_id": [1401, 1404]}))


def write_qwen3(folder):
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    added = [AddedToken(t, normalized=False) for t in ("<think>", "</think>")]
    added += [AddedToken("<tool>", normalized=True, lstrip=True, rstrip=True)]
    write_byte_level(folder, [QWEN2], {"bos_token": None, "eos_token": "<|im_end|>", "add_bos_token": False}, 1400,
                     control, added, nfc=True)


def write_tekken(folder):
    control = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    write_byte_level(folder, [TEKKEN], {"bos_token": "<s>", "eos_token": "</s>"}, 1200, control, ignore_merges=True,
                     bos="<s>")


def write_smollm(folder):
    write_byte_level(folder, [pre_tokenizers.Digits(individual_digits=True)], {"eos_token": "<|im_end|>"}, 1000,
                     ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], use_regex=True)


FAMILIES = {"llama2": write_llama2, "mistral3": write_mistral3, "llama3": write_llama3, "qwen3": write_qwen3,
            "tekken": write_tekken, "smollm": write_smollm}


def fnv1a(chunks):
    value = 0x811C9DC5
    for chunk in chunks:
        for byte in chunk:
            value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{value:08x}"


def hashes(items, to_bytes):
    return "".join(fnv1a(map(to_bytes, items[i:i + 10])) for i in range(0, len(items), 10))


def id_bytes(ids):
    return struct.pack(f"<{len(ids) + 1}i", *ids, -1)


def write_ids(path, special, plain, decoded):
    samples = [[i, special[i], plain[i]] for i in range(0, len(plain), 97)]
    golden = {"special": hashes(special, id_bytes), "plain": hashes(plain, id_bytes),
              "decoded": hashes(decoded, lambda text: text.encode() + b"\0"), "lines": samples}
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{path.parent.name}/{path.name}  {len(plain)} lines, {sum(map(len, plain))} ids")


def write_json_ids(folder, lines):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [line.decode(errors="replace") for line in lines]
    special = [tokenizer.encode(t).ids for t in texts]
    tokenizer.encode_special_tokens = True
    plain = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    write_ids(folder / "ids.json", special, plain, [tokenizer.decode(ids) for ids in plain])


def write_sentencepiece_ids(folder, lines):
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    plain = [model.encode(line) for line in lines]
    special = [model.encode(line, add_bos=True) for line in lines]  # SentencePiece never reads control tokens
    write_ids(folder / "ids_model.json", special, plain, [model.decode(ids) for ids in plain])


def main():
    lines = llm_lines.lines()
    for name, write_family in FAMILIES.items():
        folder = llm_lines.FOLDER / name
        if "--keep" not in sys.argv:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write_family(folder)
        write_json_ids(folder, lines)
        if (folder / "tokenizer.model").exists():
            write_sentencepiece_ids(folder, lines)


if __name__ == "__main__":
    main()
