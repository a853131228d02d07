// Captions of pictures: the files in which they lie, and the variants of a caption that a run shows.
//
// They are put together as kohya's scripts do it (sd-scripts, BaseDataset.process_caption in library/train_util.py): a
// prefix and a suffix, each apart by a space, then a line and a choice of each wildcard, then tags, of which some stay
// and the rest are shuffled and dropped, joined by ", ". A trigger word is ai-toolkit's, in the prompts of previews
// too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wick/train/data_files.h"

namespace wick {

constexpr std::string_view kTrigger = "[trigger]";

struct CaptionOptions {
  std::string extension = {};  // ".txt"; empty: .txt or .caption, whichever is there
  bool lines = false;          // every line of a file is a caption of its own
  bool first_line = false;     // the first line of a file is the caption
  std::string prefix = {}, suffix = {};
  std::string trigger = {};              // in place of "[trigger]"; captions without either begin with it
  std::string class_tokens = {};         // the caption of a picture without a file; empty: there must be one
  bool wildcards = false;                // {a|b} is a or b, {{ and }} are braces, and of several lines a sample has one
  bool shuffle = false;                  // of tags
  int64_t keep_tokens = 0;               // tags at the beginning that are neither shuffled nor dropped
  std::string keep_separator = {};       // stands behind the tags that stay, and before others that stay at the end
  std::string separator = ",";           // of tags
  std::string secondary_separator = {};  // becomes `separator` behind all this: what it joins is one tag until then
  double dropout = 0;                    // the share of samples whose caption is empty
  double tag_dropout = 0;                // the share of tags that a variant lacks
  int64_t variants = 8;                  // that a caption has, if it is shuffled or loses tags

  bool splits() const { return shuffle || tag_dropout > 0; }  // into tags
  bool varies() const { return splits() || wildcards; }
};

// Whether a file is named as captions are, in small letters or in capitals.
bool is_caption_name(const std::filesystem::path& file, const CaptionOptions& options);

struct PictureCaptions {
  std::vector<std::string> texts;     // UTF-8, at least one, none of them empty
  std::optional<DataFile> file = {};  // that they are from
};

// The captions of a picture, its file's name being told relative to `folder`. Throws Error where there is none, an
// empty one, two files, or one that is not UTF-8.
PictureCaptions read_captions(const std::filesystem::path& image, const std::filesystem::path& folder,
                              const CaptionOptions& options);

// "[trigger]" in a text becomes the word, unless that is empty.
std::string with_trigger(std::string text, const std::string& word);

// Variant `index` of a caption, a function of it and the seed.
std::string caption_variant(const std::string& caption, const CaptionOptions& options, uint64_t seed, int64_t index);

}  // namespace wick
