#include "wick/text/token_lines.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "wick/io/file.h"
#include "wick/io/json.h"

namespace wick {

void encode_lines(const std::filesystem::path& in, const std::filesystem::path& out, const TextToIds& encode) {
  const std::string all = read_file(in);
  std::string_view rest = all;
  std::string ids;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::string where = fmt::format("{}: line {}", in.string(), number);
    const nlohmann::json text = parse_json(line, where);
    if (!text.is_string()) fail_json(where, "a JSON string", text);
    try {
      ids += fmt::format("[{}]\n", fmt::join(encode(text.get<std::string>()), ", "));
    } catch (const Error& error) {
      fail("{}: {}", where, error.what());
    }
  }
  write_file_atomically(out, ids);
}

}  // namespace wick
