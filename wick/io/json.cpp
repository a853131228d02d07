#include "wick/io/json.h"

#include "wick/io/file.h"
#include "wick/io/quote.h"

namespace wick {

using nlohmann::json;

std::string describe(const json::exception& problem) {
  const std::string_view text = problem.what();
  const size_t start = text.find("] ");  // after "[json.exception.parse_error.101] "
  std::string_view rest = start == text.npos ? text : text.substr(start + 2);
  for (std::string_view prefix : {"parse error at ", "parse error "})
    if (rest.starts_with(prefix)) rest.remove_prefix(prefix.size());
  const std::string quoted = quote(rest);
  return quoted.substr(1, quoted.size() - 2);
}

json parse_json(std::string_view text, const std::string& source) {
  try {
    return json::parse(text);
  } catch (const json::exception& problem) {
    fail("{}: not valid JSON: {}", source, describe(problem));
  }
}

json read_json(const std::filesystem::path& path) {
  constexpr size_t kMost = size_t{256} << 20;
  return parse_json(read_file(path, kMost), path.string());
}

const json& member(const json& object, const std::string& key, const std::string& source) {
  check(object.is_object(), "{}: expected a JSON object with the key {}, found {}", source, quote(key),
        object.type_name());
  const auto found = object.find(key);
  check(found != object.end() && !found->is_null(), "{}: the key {} is missing", source, quote(key));
  return *found;
}

void fail_json(const std::string& where, std::string_view expected, const json& found) {
  const bool brief = found.is_primitive();
  fail("{}: expected {}, found {}", where, expected,
       brief              ? found.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 100)
       : found.is_array() ? "a list"
                          : "an object");
}

}  // namespace wick
