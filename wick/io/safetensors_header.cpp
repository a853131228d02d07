// The JSON header of a safetensors file: parsed, and every claim in it checked.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"
#include "wick/io/safetensors.h"
#include "wick/io/safetensors_format.h"

namespace wick {
namespace {

// Reads the header as a stream of events rather than as a tree, so that a hostile one costs no memory and every
// breach is found where it stands.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(SafetensorsHeader& header, const std::string& source) : header_(header), source_(source) {}

  bool start_object(size_t) override {
    if (skipping()) return ++skip_depth_, true;
    if (place_ == Place::file) return place_ = Place::root, true;
    if (place_ != Place::root) fail_value("an object");
    if (name_ != kMetadataKey) {
      entry_ = {}, fields_.clear();
      return place_ = Place::tensor, true;
    }
    return place_ = Place::metadata, true;
  }

  bool end_object() override {
    if (skip_depth_ > 0) return --skip_depth_, true;
    if (place_ == Place::tensor) finish_tensor();
    place_ = place_ == Place::root ? Place::end : Place::root;
    return true;
  }

  bool start_array(size_t) override {
    if (skipping()) return ++skip_depth_, true;
    if (place_ != Place::tensor || field_ == "dtype") fail_value("a list");
    place_ = field_ == "shape" ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() override {
    if (skip_depth_ > 0) return --skip_depth_, true;
    place_ = Place::tensor;
    return true;
  }

  bool key(std::string& text) override {
    if (skip_depth_ > 0) return true;
    if (place_ == Place::root) {
      name_ = text;
      const bool fresh =
          name_ == kMetadataKey ? !std::exchange(seen_metadata_, true) : !header_.tensors.contains(name_);
      check(fresh, "{}: {} stands twice in the header", source_, subject());
      return true;
    }
    field_ = text;
    const bool fresh =
        place_ == Place::metadata ? !header_.metadata.contains(field_) : skipping() || fields_.insert(field_).second;
    check(fresh, "{}: {}: the key {} stands twice", source_, subject(), quote(field_));
    return true;
  }

  bool string(std::string& text) override {
    if (skipping()) return true;
    if (place_ == Place::metadata)
      header_.metadata[field_] = text;
    else if (place_ == Place::tensor && field_ == "dtype")
      entry_.dtype = text;
    else
      fail_value("a string");
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (skipping()) return true;
    if (place_ == Place::shape) {
      check(entry_.shape.size() < kMaxRank, "{}: {} has more than {} dimensions", source_, subject(), kMaxRank);
      entry_.shape.push_back(value);
    } else if (place_ == Place::offsets) {
      check(entry_.offsets.size() < 2, "{}: {}: data_offsets has more than two entries", source_, subject());
      entry_.offsets.push_back(value);
    } else {
      fail_value("a number");
    }
    return true;
  }

  bool null() override {
    const bool no_metadata = place_ == Place::root && name_ == kMetadataKey;
    return no_metadata || scalar("null");
  }
  bool boolean(bool) override { return scalar("true or false"); }
  bool number_integer(int64_t) override { return scalar("a negative number"); }
  bool number_float(double, const std::string&) override { return scalar("a fraction or a number beyond 64 bits"); }
  bool binary(binary_t&) override { return scalar("binary data"); }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& problem) override {
    fail("{}: the header is not valid JSON: {}", source_, describe(problem));
  }

 private:
  enum class Place { file, root, metadata, tensor, shape, offsets, end };
  struct Entry {
    std::string dtype;
    std::vector<uint64_t> shape, offsets;
  };

  // Unknown fields of a tensor are passed over, as by the reference implementation.
  bool skipping() const {
    return skip_depth_ > 0 ||
           (place_ == Place::tensor && field_ != "dtype" && field_ != "shape" && field_ != "data_offsets");
  }

  bool scalar(std::string_view found) const {
    if (!skipping()) fail_value(found);
    return true;
  }

  std::string subject() const { return name_ == kMetadataKey ? name_ : "tensor " + quote(name_); }

  [[noreturn]] void fail_value(std::string_view found) const {
    const bool in_list = place_ == Place::shape || place_ == Place::offsets;
    if (place_ == Place::file || place_ == Place::end)
      fail("{}: the header: expected an object, found {}", source_, found);
    if (place_ == Place::root) fail("{}: {}: expected an object, found {}", source_, subject(), found);
    if (place_ == Place::metadata)
      fail("{}: {}: {}: expected a string, found {}", source_, subject(), quote(field_), found);
    fail("{}: {}: {}: expected {}, found {}", source_, subject(), field_,
         in_list             ? "non-negative integers"
         : field_ == "dtype" ? "a string"
                             : "a list of integers",
         found);
  }

  void finish_tensor();

  SafetensorsHeader& header_;
  const std::string& source_;
  Place place_ = Place::file;
  std::string name_, field_;
  Entry entry_;
  std::set<std::string> fields_;  // the keys of the tensor so far
  bool seen_metadata_ = false;
  int skip_depth_ = 0;
};

void HeaderReader::finish_tensor() {
  const std::string name = subject();
  for (const char* field : {"dtype", "shape", "data_offsets"})
    check(fields_.contains(field), "{}: {} has no {}", source_, name, field);
  check(entry_.offsets.size() == 2, "{}: {}: data_offsets has {} entries, not two", source_, name,
        entry_.offsets.size());
  const FileDType* dtype = std::ranges::find(kFileDTypes, entry_.dtype, &FileDType::name);
  check(dtype != std::end(kFileDTypes), "{}: {} has the unknown dtype {}", source_, name, quote(entry_.dtype));

  const uint64_t begin = entry_.offsets[0], end = entry_.offsets[1];
  check(begin <= end, "{}: {}: data_offsets end at {}, before they begin at {}", source_, name, end, begin);
  const std::optional<Shape> shape = checked_shape(entry_.shape, dtype->bits);
  check(shape.has_value(), "{}: {}: the shape [{}] is larger than any memory", source_, name,
        fmt::join(entry_.shape, ", "));
  const uint64_t bits = uint64_t(shape->numel()) * dtype->bits;
  check(bits % 8 == 0 && bits / 8 == end - begin,
        "{}: {}: shape {} of {} takes {}, but data_offsets [{}, {}] give it {}", source_, name, *shape, dtype->name,
        count_of((bits + 7) / 8, "byte"), begin, end, end - begin);
  header_.tensors.emplace(name_, TensorInfo{entry_.dtype, dtype->dtype, *shape, begin, end - begin});
}

// The tensors must cover the data exactly: no hole in which something could hide, no byte with two meanings.
void check_coverage(const SafetensorsHeader& header, uint64_t data_bytes, const std::string& source) {
  std::vector<const std::pair<const std::string, TensorInfo>*> order;
  for (const auto& entry : header.tensors) order.push_back(&entry);
  std::ranges::sort(order, {}, [](const auto* entry) { return std::pair(entry->second.begin, entry->second.bytes); });
  const uint64_t declared = order.empty() ? 0 : order.back()->second.begin + *order.back()->second.bytes;
  check(declared <= data_bytes,
        "{}: the file is truncated: the header declares {} of tensors, found {}; fetch or write it again", source,
        count_of(declared, "byte"), data_bytes);
  uint64_t end = 0;
  for (const auto* entry : order) {
    const auto& [name, info] = *entry;
    check(info.begin == end, "{}: tensor {} begins at byte {} of the data, expected {}: {}", source, quote(name),
          info.begin, end, info.begin < end ? "it overlaps another tensor" : "there is a hole before it");
    end += *info.bytes;
  }
  check(end == data_bytes, "{}: the file goes on for {} after the last tensor; it is damaged or not safetensors",
        source, count_of(data_bytes - end, "byte"));
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes, const std::string& source) {
  check(json.starts_with('{'), "{}: the header does not start with '{{'", source);
  // The JSON library takes a NUL for the end of its input and would ignore the rest.
  check(json.find('\0') == json.npos, "{}: the header is not valid JSON: it contains a NUL byte", source);
  SafetensorsHeader header;
  HeaderReader reader(header, source);
  nlohmann::json::sax_parse(json, &reader);
  check_coverage(header, data_bytes, source);
  return header;
}

}  // namespace wick
