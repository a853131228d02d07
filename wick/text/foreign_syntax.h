// What other programs take out of a prompt or interpret in it, and Wick reads as words.
//
//   <lora:NAME:0.8>   loads a LoRA (A1111's web UI; <lyco:…> and <hypernet:…> too)
//   (word:1.3)        a weight, and so is ((word)) (A1111's web UI, ComfyUI)
//   \( and \)         parentheses that are no weights (A1111's web UI, ComfyUI)
//   embedding:NAME    vectors of a word, from a file (ComfyUI)
//   [a:b:0.5] [a|b]   prompt editing and alternation (A1111's web UI)
//   BREAK, AND        a new chunk, and a composition of prompts (A1111's web UI); AND counts where some letter is small
//   {a|b}             a choice (ComfyUI's front end, Dynamic Prompts; sd-scripts in captions)
//   __name__          a line of a file of wildcards (Dynamic Prompts)
//   [trigger]         a trigger word (ai-toolkit), where training has none
//
// Source: AUTOMATIC1111/stable-diffusion-webui, modules/prompt_parser.py and modules/extra_networks.py; adieyal/
// sd-dynamic-prompts; ComfyUI, comfy/sd1_clip.py; sd-scripts, library/train_util.py.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "wick/text/prompt_syntax.h"

namespace wick {

enum class ForeignKind { network, weight, escape, embedding, edit, keyword, choice, wildcard, trigger };

struct ForeignSyntax {
  ForeignKind kind;
  std::string text;  // as the prompt has it

  bool operator==(const ForeignSyntax&) const = default;
};

// The first piece of each kind but `trigger` that the prompt, read in this syntax, has as words: ComfyUI's has weights,
// escapes and embeddings.
std::vector<ForeignSyntax> foreign_syntax(std::string_view prompt, PromptSyntax syntax = PromptSyntax::plain);

// `"<lora:fox:0.8>" and "BREAK" are read as plain words`: a piece of each kind. `may_draw`: with the flags of
// `generate` that do what they ask for.
std::string read_as_words(const std::vector<ForeignSyntax>& pieces, bool may_draw = false);

}  // namespace wick
