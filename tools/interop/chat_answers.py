"""The same greedy answers of one fine-tuned language model in three programs, each with its own engine of chat templates.

    python tools/interop/chat_answers.py --wick build/release/bin/wick --llama llama.cpp/build/bin/llama-completion

For each template below: `wick train` teaches the small language model that ships with Wick some of data/tiny-pirate; and the
questions, each behind those before it, are then answered by

    wick chat      the model and the adapter
    transformers   the folder of `wick merge`: apply_chat_template and generate, in f32
    llama.cpp      the GGUF file that `wick convert` makes of that folder: --jinja, in f32, its cache too

The template is given to `wick train` alone: the others find it in what Wick wrote. The script ends with 1 if an answer differs
from wick chat's, if transformers has no answer's end within --max-tokens, or if training changed no answer.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/tiny-llm"
DATA = ROOT / "data/tiny-pirate/train.jsonl"
SYSTEM = "Answer as a sailor."
CONVERSATIONS = [["What is a bee?", "Where does a cat live?", "What is the opposite of big?"],
                 ["Hello, I am Sam.", "Who am I?", "What does a cow say?"],
                 ["What comes after Monday?", "What is 3 plus 4?"]]

# The headers are plain text; the end of a turn is the model's control token, since that ends an answer.
HEADERS = """{%- for turn in messages -%}
{{- '(' ~ turn.role ~ ')\\n\\n' ~ turn.content | trim ~ eos_token -}}
{%- endfor -%}
{{- '(assistant)\\n\\n' if add_generation_prompt -}}"""
GENERATION = """{%- if messages[0].role != 'system' %}{{ 'You sail.' + eos_token }}{% endif -%}
{%- for turn in messages %}
{%- if turn.role == 'assistant' %}
{{- 'Sailor: ' }}{% generation %}{{ turn.content + eos_token }}{% endgeneration %}
{%- else %}
{{- turn.content + eos_token }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Sailor: ' }}{% endif %}"""
TEMPLATES = {"the model's own": None, "headers of text": HEADERS, "generation blocks": GENERATION}


class Wick:
    def __init__(self, program):
        self.program = program

    def __call__(self, *words, given=None):
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, cwd=ROOT, input=given)
        if done.returncode:
            sys.exit(f"wick {words[0]}: {done.stderr.strip()}")
        return done.stdout

    def train(self, folder, template, args):
        lines = DATA.read_text().splitlines(keepends=True)
        data = folder / "chats.jsonl"
        data.write_text("".join(lines[:args.lines]))
        given = []
        if template is not None:
            (folder / "given.jinja").write_text(template)
            given = ["--chat-template", folder / "given.jinja"]
        self("train", "--model", MODEL, "--dataset", data, "--output", folder / "run", "--name", "x", "--steps", args.steps, "--lr", "1e-2",
             "--rank", 8, "--batch-size", 4, "--sequence-length", 512, "--seed", 1, "--device", args.device, *given)
        return folder / "run" / "x"

    def answers(self, conversation, system, lora, args):
        said = self("chat", "--model", MODEL, *(["--lora", lora] if lora else []), "--temperature", 0, "--max-tokens", args.max_tokens,
                    "--device", args.device, *(["--system", system] if system else []), given="\n".join(conversation) + "\n")
        return [line.strip() for line in said.splitlines() if line.strip()]


class Transformers:
    def __init__(self, folder):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answers(self, conversation, system, args):
        messages, said = [{"role": "system", "content": system}] if system else [], []
        for question in conversation:
            messages.append({"role": "user", "content": question})
            given = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
            made = self.model.generate(**given, do_sample=False, max_new_tokens=args.max_tokens)[0, given["input_ids"].shape[1]:]
            if int(made[-1]) not in self.ends():
                sys.exit(f"transformers: no end of the answer to {question!r}")
            said.append(self.tokenizer.decode(made, skip_special_tokens=True).strip())
            messages.append({"role": "assistant", "content": said[-1]})
        return said

    def ends(self):
        ends = self.model.generation_config.eos_token_id
        return ends if isinstance(ends, list) else [ends]


class Llama:
    """llama-completion: a line of its input is a message, and each answer stands behind a "> "."""

    def __init__(self, program, model):
        self.program, self.model = program, model

    def answers(self, conversation, system, args):
        """None with a system prompt: the program writes the line end behind that twice. It takes questions off a number of tokens,
        so there is none."""
        if system:
            return None
        done = subprocess.run(
            [self.program, "-m", self.model, "--jinja", "-cnv", "--simple-io", "--no-display-prompt", "--temp", "0", "-n", "-1",
             "-c", "512", "-ctk", "f32", "-ctv", "f32", "-fa", "off", "--no-warmup", "-t", "1", "--color", "off"],
            input="\n".join(conversation) + "\n", capture_output=True, text=True)
        said = [part.strip() for part in re.split(r"^> ", done.stdout, flags=re.MULTILINE)]
        said = [part.removesuffix("EOF by user").strip() for part in said if part and not part.startswith("EOF by user")]
        return said[-len(conversation):]


def compare(name, template, args, scratch):
    wick, folder = Wick(args.wick), scratch / re.sub(r"\W+", "-", name)
    folder.mkdir()
    lora = wick.train(folder, template, args)
    wick("merge", "--model", MODEL, "--lora", lora, "--output", folder / "merged", "--dtype", "f32")
    wick("convert", "--model", folder / "merged", "--output", folder / "merged.gguf", "--dtype", "f32")
    others = {"transformers": Transformers(folder / "merged")}
    if args.llama:
        others["llama.cpp"] = Llama(args.llama, folder / "merged.gguf")
    different, changed = 0, 0
    for conversation in CONVERSATIONS:
        for system in ("", SYSTEM):
            want = wick.answers(conversation, system, lora, args)
            changed += want != wick.answers(conversation, system, None, args)
            for program, other in others.items():
                found = other.answers(conversation, system, args)
                if found is None:
                    continue
                different += found != want
                print(f"{name}, {'system, ' if system else ''}{program}: {'same' if found == want else 'DIFFERENT'}  "
                      + json.dumps(want if found == want else [want, found], ensure_ascii=False))
    return different + (changed == 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--wick", required=True, help="the program")
    parser.add_argument("--llama", help="llama.cpp's llama-completion")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lines", type=int, default=24, help="of data/tiny-pirate")
    parser.add_argument("--max-tokens", type=int, default=60)
    parser.add_argument("--keep", help="a folder for what is made")
    args = parser.parse_args()
    scratch = Path(args.keep or tempfile.mkdtemp())
    scratch.mkdir(parents=True, exist_ok=True)
    different = sum(compare(name, template, args, scratch) for name, template in TEMPLATES.items())
    if not args.keep:
        shutil.rmtree(scratch)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
