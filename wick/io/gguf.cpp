#include "wick/io/gguf.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <system_error>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/descriptor.h"
#include "wick/io/gguf_format.h"
#include "wick/io/quote.h"

namespace wick {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and so are we");

namespace {

constexpr const char* kTypeNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                      "bool", "string", "array", "u64", "i64", "f64"};
static_assert(std::size(kTypeNames) == std::variant_size_v<GgufValue> &&
              std::size(kTypeNames) == std::variant_size_v<GgufArray>);

// Calls f(static_cast<T*>(nullptr)), where T is alternative `index` of a variant.
template <class Variant, class F>
void for_alternative(size_t index, const F& f) {
  [&]<size_t... I>(std::index_sequence<I...>) {
    (void)((I == index && (f(static_cast<std::variant_alternative_t<I, Variant>*>(nullptr)), true)) || ...);
  }
  (std::make_index_sequence<std::variant_size_v<Variant>>());
}

const GgufType* find_type(uint32_t id) {
  const auto* found = std::ranges::find(kGgufTypes, id, &GgufType::id);
  return found == std::end(kGgufTypes) ? nullptr : found;
}

bool has_magic(const FileDescriptor& file) {
  std::array<char, 4> magic{};
  file.read_at(0, magic.data(), magic.size());
  return std::string_view(magic.data(), magic.size()) == kGgufMagic;
}

// Reads a file from front to back through a small window; a claim to more than is left of it is an error.
class Window {
 public:
  explicit Window(const FileDescriptor& file) : file_(file), source_(file.path().string()) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return file_.size() - position_; }
  const std::string& source() const { return source_; }

  void read(void* to, size_t bytes, std::string_view what) {
    check(bytes <= left(), "{}: the file is truncated: {} should take {} at byte {}, found {}; fetch it again", source_,
          what, count_of(bytes, "byte"), position_, left());
    auto* out = static_cast<char*>(to);
    while (bytes > 0) {
      if (position_ < begin_ || position_ >= begin_ + filled_) refill();
      const size_t n = std::min<size_t>(bytes, size_t(begin_ + filled_ - position_));
      std::memcpy(out, buffer_.data() + (position_ - begin_), n);
      out += n;
      position_ += n;
      bytes -= n;
    }
  }

  template <class T>
  T number(std::string_view what) {
    T value;
    read(&value, sizeof value, what);
    return value;
  }

  std::string string(std::string_view what) {
    const auto length = number<uint64_t>(what);
    check(length <= left(), "{}: {} should have {} at byte {}, found {}: the file is damaged or truncated", source_,
          what, count_of(length, "byte"), position_, left());
    std::string text(size_t(length), '\0');
    read(text.data(), text.size(), what);
    return text;
  }

  // Reads the count of items that take at least `least` bytes each.
  uint64_t count(std::string_view what, uint64_t least) { return checked_count(number<uint64_t>(what), what, least); }
  uint64_t checked_count(uint64_t n, std::string_view what, uint64_t least) const {
    check(n <= left() / least, "{}: {} cannot be {}: the file ends after {} more; it is damaged or truncated", source_,
          what, n, count_of(left(), "byte"));
    return n;
  }

 private:
  void refill() {
    begin_ = position_;
    filled_ = file_.read_at(begin_, buffer_.data(), buffer_.size());
    check(filled_ > 0, "{}: the file shrank while it was read", source_);
  }

  const FileDescriptor& file_;
  std::string source_;
  std::vector<char> buffer_ = std::vector<char>(size_t{1} << 16);
  uint64_t position_ = 0, begin_ = 0;
  size_t filled_ = 0;
};

}  // namespace

class GgufReader {
 public:
  explicit GgufReader(const std::filesystem::path& path)
      : file_(
            path,
            "use a file of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4, TQ1_0 or "
            "TQ2_0") {}

  GgufFile read() {
    Window in(*file_.file_);
    read_version(in);
    const uint64_t tensors = in.count("the number of tensors", kLeastTensor);
    const uint64_t entries = in.count("the number of metadata entries", kLeastEntry);
    read_metadata(in, entries);
    for (uint64_t i = 0; i < tensors; ++i) read_tensor(in, i);
    place_tensors(in);
    return std::move(file_);
  }

 private:
  static constexpr uint64_t kLeastEntry = 8 + 4 + 1, kLeastTensor = 8 + 4 + 4 + 8;

  std::string source() const { return file_.path_.string(); }

  void read_version(Window& in) {
    check(has_magic(*file_.file_), "{}: expected a GGUF file, found something else: it does not start with {}",
          source(), kGgufMagic);
    in.number<uint32_t>("the magic number");
    file_.version_ = in.number<uint32_t>("the version");
    check((file_.version_ & 0xffff) != 0, "{}: the file is big-endian, which Wick does not read; convert it", source());
    check(file_.version_ == 2 || file_.version_ == 3,
          "{}: expected GGUF version 2 or 3, found version {}; convert the model again with a present llama.cpp",
          source(), file_.version_);
  }

  void read_metadata(Window& in, uint64_t count) {
    GgufMetadata::Entries entries;
    for (uint64_t i = 0; i < count; ++i) {
      std::string key = in.string(fmt::format("the key of metadata entry {}", i));
      const auto type = in.number<uint32_t>("a metadata type");
      entries.emplace_back(key, read_value(in, type, key));
    }
    file_.metadata_ = GgufMetadata(source(), std::move(entries));
  }

  GgufValue read_value(Window& in, uint32_t type, const std::string& key) {
    check(type < std::variant_size_v<GgufValue>, "{}: metadata {} has the unknown type {}", source(), quote(key), type);
    const std::string what = "metadata " + quote(key);
    GgufValue value;
    for_alternative<GgufValue>(type, [&]<class T>(T*) { value.emplace<T>(read_one<T>(in, what)); });
    return value;
  }

  template <class T>
  T read_one(Window& in, const std::string& what) {
    if constexpr (std::is_same_v<T, std::string>) {
      return in.string(what);
    } else if constexpr (std::is_same_v<T, GgufArray>) {
      return read_array(in, what);
    } else if constexpr (std::is_same_v<T, bool>) {
      const auto byte = in.number<uint8_t>(what);
      check(byte <= 1, "{}: {}: expected a bool, 0 or 1, found {}", source(), what, byte);
      return byte == 1;
    } else {
      return in.number<T>(what);
    }
  }

  GgufArray read_array(Window& in, const std::string& what) {
    const auto type = in.number<uint32_t>(what);
    check(type < std::variant_size_v<GgufArray>, "{}: {} is an array of the unknown type {}", source(), what, type);
    const auto count = in.number<uint64_t>(what);
    GgufArray array;
    for_alternative<GgufArray>(type, [&]<class A>(A*) {
      if constexpr (std::is_same_v<A, std::monostate>) {
        fail("{}: {} is an array of arrays, which Wick does not read", source(), what);
      } else {
        using T = typename A::value_type;
        in.checked_count(count, "the length of " + what, std::is_same_v<T, std::string> ? 8 : sizeof(T));
        A& values = array.emplace<A>();
        values.reserve(size_t(count));
        for (uint64_t i = 0; i < count; ++i) values.push_back(read_one<T>(in, what));
      }
    });
    return array;
  }

  void read_tensor(Window& in, uint64_t index) {
    const std::string name = in.string(fmt::format("the name of tensor {}", index));
    const std::string what = "tensor " + quote(name);
    const auto rank = in.number<uint32_t>(what);
    check(rank <= kGgufMaxRank, "{}: {} has {} dimensions, more than {}", source(), what, rank, kGgufMaxRank);
    std::array<uint64_t, kGgufMaxRank> extents{};
    in.read(extents.data(), rank * sizeof(uint64_t), what);
    const auto id = in.number<uint32_t>(what);
    const GgufType* type = find_type(id);
    const std::vector<uint64_t> outermost_first(extents.rend() - rank, extents.rend());
    const std::optional<Shape> shape = checked_shape(outermost_first, type ? uint64_t(type->block.bytes) : 1);
    check(shape.has_value(), "{}: {}: a shape of {} is larger than any memory", source(), what,
          fmt::join(extents.begin(), extents.begin() + rank, " x "));
    TensorInfo tensor{type ? std::string(type->name) : fmt::format("type {}", id), type ? type->dtype : std::nullopt,
                      *shape};
    if (type) {
      check(rank == 0 ? type->block.elements == 1 : extents[0] % uint64_t(type->block.elements) == 0,
            "{}: {}: rows of {} are not whole blocks of {}, of {}", source(), what,
            count_of(rank ? extents[0] : 1, "element"), type->name, count_of(type->block.elements, "element"));
      tensor.bytes = uint64_t(shape->numel() / type->block.elements * type->block.bytes);
    }
    tensor.begin = in.number<uint64_t>(what);
    check(file_.tensors_.emplace(name, std::move(tensor)).second, "{}: {} stands twice", source(), what);
  }

  // Finds where the data begin, and checks that each tensor lies there and alone.
  void place_tensors(const Window& in) {
    const auto alignment = uint64_t(file_.metadata_.integer_or(kGgufAlignmentKey, kGgufAlignment, {1, 1 << 30}));
    check(std::has_single_bit(alignment), "{}: {} should be a power of two, found {}", source(), kGgufAlignmentKey,
          alignment);
    const uint64_t size = file_.file_->size();
    const uint64_t start = file_.data_ = (in.position() + alignment - 1) / alignment * alignment;
    std::vector<const std::pair<const std::string, TensorInfo>*> order;
    for (const auto& entry : file_.tensors_) {
      const auto& [name, tensor] = entry;
      const uint64_t bytes = tensor.bytes.value_or(0), left = size - std::min(size, start);
      check(tensor.begin % alignment == 0, "{}: tensor {} begins at byte {} of the data, not at a multiple of {}",
            source(), quote(name), tensor.begin, alignment);
      check(tensor.begin <= left && bytes <= left - tensor.begin,
            "{}: the file is truncated: tensor {} takes {} from byte {} of the data on, of which there are {}; "
            "fetch it again",
            source(), quote(name), count_of(bytes, "byte"), tensor.begin, left);
      if (bytes > 0) order.push_back(&entry);
    }
    std::ranges::sort(order, {}, [](const auto* entry) { return entry->second.begin; });
    for (size_t i = 1; i < order.size(); ++i)
      check(order[i - 1]->second.begin + *order[i - 1]->second.bytes <= order[i]->second.begin,
            "{}: tensor {} overlaps tensor {}", source(), quote(order[i]->first), quote(order[i - 1]->first));
  }

  GgufFile file_;
};

namespace {

// The keys that llama.cpp's gguf-split writes into each part.
constexpr const char *kPartNumber = "split.no", *kPartCount = "split.count", *kPartTensors = "split.tensors.count";
constexpr IntegerRange kPartRange{0, UINT16_MAX};

struct GgufPart {
  int64_t number, count;  // the first is 0

  static GgufPart of(const GgufMetadata& metadata) {
    return {metadata.integer_or(kPartNumber, 0, kPartRange), metadata.integer_or(kPartCount, 1, kPartRange)};
  }
  bool is_whole() const { return count <= 1; }
  std::string ending(int64_t of_number) const { return fmt::format("-{:05}-of-{:05}.gguf", of_number + 1, count); }
};

}  // namespace

GgufFile GgufFile::open(const std::filesystem::path& path) {
  GgufFile file = GgufReader(path).read();
  const GgufPart part = GgufPart::of(file.metadata());
  if (part.is_whole()) return file;
  const std::string name = path.string(), ending = part.ending(part.number);
  check(name.ends_with(ending), "{}: is part {} of {}; expected a name that ends with {}", name, part.number + 1,
        part.count, quote(ending));
  const auto path_of = [&](int64_t number) -> std::filesystem::path {
    return name.substr(0, name.size() - ending.size()) + part.ending(number);
  };
  if (part.number != 0) file = GgufReader(path_of(0)).read();
  for (int64_t i = 0; i < part.count; ++i) {
    std::optional<GgufFile> more;
    if (i > 0) more = GgufReader(path_of(i)).read();
    const GgufPart found = GgufPart::of((more ? *more : file).metadata());
    check(found.number == i && found.count == part.count, "{}: expected part {} of {}, found part {} of {}",
          path_of(i).string(), i + 1, part.count, found.number + 1, found.count);
    if (more) file.add_part(*more);
  }
  const auto tensors = int64_t(file.tensors().size());
  check(file.metadata().integer_or(kPartTensors, tensors) == tensors, "{}: its {} parts have {}, and {} is {}",
        file.path().string(), part.count, count_of(tensors, "tensor"), kPartTensors,
        file.metadata().integer_or(kPartTensors, 0));
  return file;
}

bool GgufFile::is_gguf(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && has_magic(FileDescriptor(path));
}

}  // namespace wick
