#include "wick/train/foreign/page.h"

#include <fmt/format.h>

#include "wick/train/foreign/ai_toolkit.h"
#include "wick/train/foreign/kohya.h"
#include "wick/train/foreign/musubi.h"
#include "wick/train/foreign/onetrainer.h"

namespace wick {
namespace {

std::string key_cell(const ForeignKey& row) {
  switch (row.kind) {
    case ForeignKey::Kind::setting:
      return fmt::format("`{}`", option_named(row.text).flag());
    case ForeignKey::Kind::together:
      return "read with other keys";
    case ForeignKey::Kind::idle:
      return fmt::format("without meaning here: {}", row.text);
    case ForeignKey::Kind::refused:
      break;
  }
  return fmt::format("refused{}{}", row.neutral.empty() ? "" : fmt::format(" unless `{}`", row.neutral),
                     row.text.empty() ? "" : fmt::format("; {}", row.text));
}

std::string key_table(std::string_view program, std::span<const ForeignKey> rows) {
  std::string text = fmt::format("\n## {}\n\n| key | Wick |\n|---|---|\n", program);
  for (const ForeignKey& row : rows) text += fmt::format("| `{}` | {} |\n", row.key, key_cell(row));
  return text;
}

}  // namespace

std::string option_files_page() {
  return "# Keys of other trainers' option files\n\n"
         "`wick train --explain-config FILE` tells what becomes of each key of a file, with its value. These are the "
         "keys that Wick\n"
         "knows; keys that the program itself does not know do nothing there and nothing here. A test holds this page "
         "to the tables in\n"
         "`wick/train/foreign`.\n" +
         key_table("kohya's scripts", kohya_keys()) + key_table("ai-toolkit", ai_toolkit_keys()) +
         key_table("OneTrainer", onetrainer_keys()) + key_table("musubi-tuner", musubi_keys());
}

}  // namespace wick
