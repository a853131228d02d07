// How prompts are written, where they are more than one text: ComfyUI's syntax of weights.
//
//   (text)        counts 1.1 times as much as the text around it, and so on inwards
//   (text:1.3)    counts 1.3, whatever counts around it; inner parentheses have weights of their own
//   \( and \)     are parentheses of the text
//
// The number stands behind the last colon of a pair of parentheses, as Python writes a float, in ASCII. Where none
// stands there, or no text before the colon, all of it is text that counts 1.1 times as much.
// A ")" that closes nothing makes text of the next "(" too. A "(" that nothing closes is text, unless the prompt, or
// the pair around it, ends with a ")": the two are a pair then. Source: ComfyUI (comfy/sd1_clip.py, October 2025),
// where parts between parentheses are tokenized one by one, too.
//
//   embedding:WORD   is a word that has vectors of its own (text/learned_word.h); so is WORD alone, other than in
//   ComfyUI
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wick/text/learned_word.h"

namespace wick {

class ClipTokenizer;
class T5Tokenizer;

enum class PromptSyntax {
  plain,    // one text that weighs 1, cut where the encoder's positions end
  comfyui,  // weighted parts; CLIP reads as many chunks as there are
};

struct WeightedText {
  std::string text;
  float weight = 1;
  std::vector<int64_t> ids = {};  // in place of the text

  bool operator==(const WeightedText&) const = default;
};

// The parts of a prompt in ComfyUI's syntax. Throws UsageError for a weight that is not finite, parentheses deeper than
// 256 levels, and `embedding:NAME` of another than these words, which become parts; Error for text that is not UTF-8 or
// too long.
std::vector<WeightedText> weighted_texts(std::string_view prompt, const std::vector<LearnedWord>& words = {});

// Tokens and the weight of each. Those that start, end and pad weigh 1.
struct WeightedIds {
  std::vector<int64_t> ids;
  std::vector<float> weights;

  bool operator==(const WeightedIds&) const = default;
};

// Whole chunks of max_length() tokens, at least one, each with its start, end and padding. A part of less than eight
// tokens is not divided: it begins the next chunk where it does not fit into this one.
WeightedIds clip_chunks(const std::vector<WeightedText>& parts, const ClipTokenizer& tokenizer);
// The tokens of all parts and the end token, neither cut nor padded. (ComfyUI pads to 77 for SD3, to 256 for FLUX.)
WeightedIds t5_ids(const std::vector<WeightedText>& parts, const T5Tokenizer& tokenizer);

}  // namespace wick
