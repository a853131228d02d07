#include "wick/nn/weights.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <future>
#include <optional>
#include <utility>

#include "wick/autograd/block_schedule.h"
#include "wick/backend/counting.h"
#include "wick/core/blocks.h"
#include "wick/io/count.h"
#include "wick/io/safetensors.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kPieceBytes = 2 << 20;         // bytes of a file that are read and converted at once
constexpr int64_t kDevicePieceBytes = 64 << 20;  // and on a device, for which several threads read them
constexpr int64_t kCodeSide = 16;  // sides of matrices of codes that tensor cores multiply are multiples of it

bool is_pointwise(const Shape& stored, const Shape& matrix) {
  return matrix.rank() == 2 && stored == Shape{matrix[0], matrix[1], 1, 1};
}

enum class Use { any, convolution, bias };

// A tensor as a layer asks for it.
struct Asked {
  std::string name;
  Shape shape;
  StoredTensor stored;
  DType dtype;  // of the tensor that is handed out
};

}  // namespace

struct Weights::State {
  struct Loaded {
    Tensor value;
    Shape file_shape;
  };

  TensorSource source;
  Options options;
  std::map<std::string, Loaded> loaded = {};
  std::map<std::string, StackedTensor> stacks = {};  // by the first name in them
  std::map<std::string, Tensor> as_read = {};        // of trainable weights: read and not trained, for save()
  std::vector<Parameter> parameters = {};
  std::vector<Memory::Filling> deferred = {};  // into tensors that were handed out
  std::vector<std::function<void()>> once_read = {};
  Quantized quantized = {};
  std::shared_ptr<BlockStream> stream = {};
  std::vector<size_t> block_bytes = {};
  std::optional<size_t> in_slot = {};  // the block whose tensors lie in a slot, to be kept by the stream

  Memory& memory() const { return *options.place.memory; }

  StoredTensor find(const std::string& name, const Shape& shape) const {
    std::optional<StoredTensor> found = source.find(name, shape);
    check(found.has_value(), "{}: has no tensor {}", source.name, source.in_words(name));
    check(found->shape == shape || is_pointwise(found->shape, shape), "{}: {} should have shape {}, found {}",
          source.name, source.in_words(name), shape, found->shape);
    return *std::move(found);
  }

  // Is it a matrix to be quantised, if its rows allow it?
  bool is_named(const std::string& name, const Shape& shape) const {
    return is_quantized(options.dtype) && shape.rank() == 2 && (!options.quantizes || options.quantizes(name));
  }
  bool has_whole_blocks(const Shape& shape) const { return shape.back() % block_of(options.dtype).elements == 0; }

  DType dtype_of(const std::string& name, const std::optional<StoredTensor>& stored, const Shape& shape) const {
    if (options.trainable || shape.rank() == 1) return DType::f32;
    if (options.as_stored && stored && stored->dtype) return stored->decoded ? DType::bf16 : *stored->dtype;
    if (!is_quantized(options.dtype)) return options.dtype;
    return is_named(name, shape) && has_whole_blocks(shape) ? quantized_dtype(shape) : options.unquantized;
  }
  DType quantized_dtype(const Shape& shape) const {
    const bool has_odd_side = shape[0] % kCodeSide || shape[1] % kCodeSide;
    return options.dtype == DType::fp8_product && has_odd_side ? DType::fp8 : options.dtype;
  }

  void count(const Asked& a) {
    if (options.trainable || options.as_stored || !is_named(a.name, a.shape)) return;
    ++(a.dtype == options.dtype ? quantized.matrices : quantized.kept);
  }

  DType dtype_of_bias(const StoredTensor& stored) const {
    const DType activations = options.place.activations;
    return !options.trainable && stored.dtype == activations ? activations : DType::f32;
  }

  Asked ask(const std::string& name, const Shape& shape, Use use) const {
    StoredTensor stored = find(name, shape);
    const DType dtype = use == Use::bias ? dtype_of_bias(stored) : dtype_of(name, stored, shape);
    if (const Memory::Source rows = rows_of(stored, dtype)) {
      stored.dtype = dtype;
      stored.bytes = rows;
    }
    return {name, shape, stored, dtype};
  }

  // The file's own codes and scales, where it has them in that dtype.
  static Memory::Source rows_of(const StoredTensor& stored, DType dtype) {
    return stored.rows && has_row_format(dtype) ? stored.rows(dtype) : Memory::Source{};
  }

  // A stack is of one dtype. The bytes of fp8 and fp8_product are the same.
  static void decode_for_products(Asked& a) {
    for (DType* dtype : {&a.dtype, a.stored.dtype ? &*a.stored.dtype : nullptr})
      if (dtype && *dtype == DType::fp8_product) *dtype = DType::fp8;
  }

  // Does the file store it in the wanted dtype?
  static bool is_as_wanted(const Asked& a) { return a.stored.bytes && a.stored.dtype == a.dtype; }

  // Is it a matrix of a file that is wanted in another dtype?
  static bool converts_rows(const Asked& a) {
    const std::optional<DType>& stored = a.stored.dtype;
    return a.shape.rank() == 2 && a.stored.bytes && stored && (is_float(*stored) || is_quantized(*stored)) &&
           stored != a.dtype;
  }

  // Is it a tensor of a map that frozen weights share with it?
  bool is_shared(const Asked& a) const {
    return source.has_values && !a.stored.bytes && a.stored.dtype == a.dtype && !options.trainable;
  }

  static Memory::Filling filling(const Tensor& rows, const Asked& a) {
    return {rows.view().data, size_t(bytes_of(a.dtype, a.shape)), a.stored.bytes};
  }

  // How many rows of a matrix are converted at once. Those of nf4_double are quantised together.
  int64_t rows_at_once(const Asked& a, DType stored) const {
    const int64_t piece = memory().on_host() ? kPieceBytes : kDevicePieceBytes, rows = std::max<int64_t>(a.shape[0], 1);
    if (a.dtype == DType::nf4_double) return rows;
    return std::clamp<int64_t>(piece / std::max<int64_t>(bytes_of(stored, a.shape[1]), 1), 1, rows);
  }

  // Converts some rows at a time: the whole matrix never lies in memory as it is stored or in f32 too.
  void read_rows(const Tensor& to, const Asked& a) {
    const DType stored = *a.stored.dtype;
    const int64_t rows = a.shape[0], width = a.shape[1], most = rows_at_once(a, stored);
    // On the host it is not a tensor: chunks of malloc's own alignment fit again where the last one was, so that they
    // leave no holes.
    std::vector<char> on_host(memory().on_host() ? size_t(bytes_of(stored, most * width)) : 0);
    const Tensor there = on_host.empty() ? Tensor::empty({most, width}, stored, memory()) : Tensor();
    for (int64_t begin = 0; begin < rows; begin += most) {
      const Shape part{std::min(most, rows - begin), width};
      const auto skipped = size_t(bytes_of(stored, begin * width)), bytes = size_t(bytes_of(stored, part));
      const View piece{there ? there.view().data : on_host.data(), stored, part, contiguous_strides(part)};
      if (there)
        memory().fill({{piece.data, bytes, behind(a.stored.bytes, skipped)}});
      else
        a.stored.bytes(on_host.data(), skipped, bytes);
      to.backend().copy(to.window(part, to.stride(), begin * width), piece);
    }
  }

  static Memory::Source behind(const Memory::Source& bytes, size_t skipped) {
    return [=](void* host, size_t at, size_t count) { bytes(host, skipped + at, count); };
  }

  // Fills contiguous rows of a tensor with what is stored in another dtype or layout. What that takes meanwhile comes
  // from the arena, so that weights lie side by side and a step has the room.
  void convert(const Tensor& rows, const Asked& a, bool conv) {
    const Arena arena(memory());
    if (!source.has_values) return count_conversion(a, conv);
    if (!conv && converts_rows(a)) return read_rows(rows, a);
    const Tensor stored = a.stored.load(memory());
    check(is_float(stored.dtype()) || is_quantized(stored.dtype()), "{}: \"{}\" should be f32, f16 or bf16, found {}",
          source.name, a.name, name_of(stored.dtype()));
    const Tensor x = reshape(stored, a.shape);
    rows.backend().copy(rows, conv ? permute(x, {0, 2, 3, 1}) : x);
  }

  // The same in an outline, for files of 16 bits: on a device the tensor lies there as the file has it, and in f32
  // while blocks are made of it.
  void count_conversion(const Asked& a, bool conv) const {
    const bool on_cpu = &memory().host_side() == &memory();
    if (on_cpu || !(conv || is_quantized(a.dtype))) return;
    if (conv) return (void)Tensor::empty(a.shape, a.dtype, memory());
    const Shape piece{rows_at_once(a, DType::bf16), a.shape[1]};
    const Tensor stored = Tensor::empty(piece, DType::bf16, memory());
    if (is_block(a.dtype)) Tensor::empty(piece, DType::f32, memory());
  }

  bool is_streamed(std::optional<size_t> block) const { return block && stream && stream->has(*block); }

  // For a tensor that is handed out.
  Tensor room(const Shape& shape, DType dtype, std::optional<size_t> block) {
    if (block && in_slot != block) finish_block();
    if (!is_streamed(block)) return Tensor::empty(shape, dtype, memory());
    in_slot = block;
    return stream->room(*block, shape, dtype);
  }

  void read_deferred() {
    if (!deferred.empty()) memory().fill(std::exchange(deferred, {}));
  }

  void tell_read() {
    for (const auto& f : std::exchange(once_read, {})) f();
  }

  void finish_block() {
    if (!in_slot) return;
    read_deferred();
    tell_read();
    stream->keep(*std::exchange(in_slot, std::nullopt), source.has_values);
  }

  // Fills contiguous rows of a tensor that is handed out, now or in read_deferred().
  void read_into(const Tensor& rows, const Asked& a, bool conv) {
    if (conv || !is_as_wanted(a)) return convert(rows, a, conv);
    if (options.deferred && !options.trainable)
      deferred.push_back(filling(rows, a));
    else
      memory().fill({filling(rows, a)});
  }

  // Hands out `value` under the name that was asked for.
  Tensor keep(const Asked& a, Tensor value, std::optional<size_t> block) {
    count(a);
    // Where an adapter comes, a vector is f32 (load_bias).
    const DType widest = a.shape.rank() == 1 ? DType::f32 : a.dtype;
    if (block) block_bytes[*block] += BlockStream::rounded_up(size_t(bytes_of(widest, a.shape)));
    if (options.trainable) {
      value = value.trainable();
      parameters.push_back({a.name, value});
    } else if (!is_streamed(block)) {
      value = value.constant();
    }
    loaded[a.name] = {value, a.stored.shape};
    return value;
  }

  Tensor load(const std::string& name, const Shape& shape, Use use, std::optional<size_t> block) {
    if (const auto found = loaded.find(name); found != loaded.end()) return found->second.value;
    const bool conv = use == Use::convolution;
    const Asked a = ask(name, shape, use);
    const MemoryScope scope(Purpose::weights);
    const Shape here = conv ? Shape{shape[0], shape[2], shape[3], shape[1]} : shape;
    if (!conv && !is_streamed(block) && is_shared(a)) return keep(a, reshape(a.stored.load(memory()), a.shape), block);
    const Tensor value = room(here, a.dtype, block);
    read_into(value, a, conv);
    return keep(a, value, block);
  }

  StackedTensor load_stacked(const std::vector<std::string>& names, const std::vector<Shape>& shapes, Use use,
                             std::optional<size_t> block) {
    if (names.size() == 1) return {load(names.front(), shapes.front(), use, block), {}};
    if (const auto found = stacks.find(names.front()); found != stacks.end()) return found->second;
    // Nothing is allocated for a config's sizes before the files are known to hold such tensors.
    std::vector<Asked> all;
    for (size_t i = 0; i < names.size(); ++i) all.push_back(ask(names[i], shapes[i], use));
    const auto is_wide = [](const Asked& a) { return a.dtype == DType::f32; };
    if (use == Use::bias && std::any_of(all.begin(), all.end(), is_wide))
      for (Asked& a : all) a.dtype = DType::f32;
    if (std::any_of(all.begin(), all.end(), [](const Asked& a) { return a.dtype == DType::fp8; }))
      std::for_each(all.begin(), all.end(), decode_for_products);
    const MemoryScope scope(Purpose::weights);
    Shape together = shapes.front();
    for (size_t i = 1; i < shapes.size(); ++i) together[0] += shapes[i][0];
    const DType dtype = all.front().dtype;
    StackedTensor stack{room(together, dtype, block), {}};
    int64_t begin = 0;
    for (const Asked& a : all) {
      check(!loaded.contains(a.name), "{}: \"{}\" is loaded already, apart from {}", source.name, a.name,
            names.front());
      check(a.dtype == dtype, "{}: \"{}\" is {}, and {} is {}: they do not stack", source.name, a.name,
            name_of(a.dtype), names.front(), name_of(dtype));
      const Tensor rows = stack.whole.window(a.shape, stack.whole.stride(), begin);
      begin += a.shape.numel();
      read_into(rows, a, false);
      const Tensor kept = keep(a, rows, block);
      if (options.trainable) stack.parts.push_back(kept);
    }
    if (!options.trainable && !is_streamed(block)) stack.whole = stack.whole.constant();
    return stacks[names.front()] = stack;
  }
};

Weights::Weights(TensorSource source, Options options)
    : state_(std::make_shared<State>(State{std::move(source), options})) {}

Residence Residence::on(Backend& backend, DType weights) { return {&backend.memory(), backend.computes_in(weights)}; }

Weights Weights::next_block() const {
  Weights block = *this;
  if (block_) return block;
  block.block_ = state_->block_bytes.size();
  state_->block_bytes.push_back(0);
  return block;
}

Weights Weights::outside_blocks() const {
  Weights outside = *this;
  outside.block_.reset();
  return outside;
}

size_t Weights::blocks() const { return state_->block_bytes.size(); }

std::shared_ptr<BlockStream> Weights::stream(size_t count, const std::function<void(const Weights&)>& build,
                                             MasterPlace masters) const {
  assert(state_->loaded.empty() && !state_->options.trainable);
  CountingBackend counting(device_kind("cpu"));
  TensorSource shapes = state_->source;
  shapes.has_values = false;
  Options options = state_->options;
  options.place.memory = &counting.memory();
  const Weights outlined(shapes, options);
  build(outlined);
  const std::vector<size_t>& bytes = outlined.state_->block_bytes;
  // Each thread may hold them in its own way.
  masters.name += fmt::format(" of {}, {}{}", shapes.name, options.as_stored ? "as stored" : name_of(options.dtype),
                              masters.staged ? ", staged" : "");
  return state_->stream = std::make_shared<BlockStream>(
             state_->memory(), bytes, count == BlockSchedule::kAll ? bytes.size() : count, std::move(masters));
}

void Weights::read_deferred(const std::function<void()>& meanwhile) const {
  state_->finish_block();
  // Streamed weights load through slots, from which a computation would read.
  const bool at_once = meanwhile && !state_->deferred.empty() && !state_->memory().on_host() && !state_->stream;
  std::future<void> reading =
      std::async(at_once ? std::launch::async : std::launch::deferred, [this] { state_->read_deferred(); });
  if (at_once) meanwhile();
  reading.get();
  state_->tell_read();
}

void Weights::when_read(std::function<void()> f) const {
  if (state_->options.deferred)
    state_->once_read.push_back(std::move(f));
  else
    f();
}

Weights::Quantized Weights::quantized() const { return state_->quantized; }

std::string Weights::describe_quantized() const {
  const auto [matrices, kept] = state_->quantized;
  if (matrices + kept == 0) return {};
  const DType dtype = state_->options.dtype, other = state_->options.unquantized;
  const bool multiplies = dtype == DType::fp8_product;
  const std::string why = multiplies
                              ? fmt::format("sides, or those of one beside it, are not multiples of {}", kCodeSide)
                              : fmt::format("rows are not whole blocks of {}", block_of(dtype).elements);
  check(matrices > 0, "{}: none of {} can be {}: {}", state_->source.name, count_of(kept, "weight"),
        multiplies ? "multiplied in fp8" : name_of(dtype), why);
  std::string text =
      fmt::format("{}: {}", multiplies ? "fp8, multiplied in fp8" : name_of(dtype), count_of(matrices, "weight"));
  const bool one = kept == 1;
  if (kept > 0)
    text += fmt::format("; {} {} {}, as {} {}", kept,
                        multiplies ? (one ? "is multiplied in" : "are multiplied in") : (one ? "stays" : "stay"),
                        name_of(other), one ? "its" : "their", why);
  return text;
}

const Residence& Weights::place() const { return state_->options.place; }

bool Weights::is_outline() const { return !state_->source.has_values; }

bool Weights::has(const std::string& name) const { return state_->source.has(name); }

bool Weights::is_copy(const std::string& name, const std::string& other) const {
  const std::optional<StoredTensor> a = state_->source.find(name, {}), b = state_->source.find(other, {});
  if (!a || !b || a->shape != b->shape || a->dtype != b->dtype || !a->dtype || !a->bytes || !b->bytes) return false;
  const auto bytes = size_t(bytes_of(*a->dtype, a->shape));
  std::vector<char> piece(kPieceBytes), other_piece(kPieceBytes);
  for (size_t begin = 0; begin < bytes; begin += piece.size()) {
    const size_t count = std::min(piece.size(), bytes - begin);
    a->bytes(piece.data(), begin, count);
    b->bytes(other_piece.data(), begin, count);
    if (std::memcmp(piece.data(), other_piece.data(), count) != 0) return false;
  }
  return true;
}

DType Weights::dtype_of(const std::string& name, const Shape& shape) const {
  return state_->dtype_of(name, state_->source.find(name, shape), shape);
}

DType Weights::stored_dtype(const std::string& name, const Shape& shape) const {
  const StoredTensor stored = state_->find(name, shape);
  check(stored.dtype && (is_float(*stored.dtype) || is_quantized(*stored.dtype)),
        "{}: \"{}\" is {}, which Wick does not compute with", state_->source.name, name, stored.dtype_name);
  return *stored.dtype;
}

bool Weights::is_decoded(const std::string& name, const Shape& shape) const {
  return state_->find(name, shape).decoded;
}

Tensor Weights::read(const std::string& name, const Shape& shape) const {
  const Tensor stored = reshape(state_->find(name, shape).load(host_memory()), shape);
  if (state_->options.trainable) state_->as_read[name] = stored;
  return stored;
}

Tensor Weights::load(const std::string& name, const Shape& shape) const {
  return state_->load(name, shape, Use::any, block_);
}

StackedTensor Weights::load_stacked(const std::vector<std::string>& names, const std::vector<Shape>& shapes) const {
  return state_->load_stacked(names, shapes, Use::any, block_);
}

Tensor Weights::load_bias(const std::string& name, const Shape& shape) const {
  return state_->load(name, shape, Use::bias, block_);
}

StackedTensor Weights::load_stacked_biases(const std::vector<std::string>& names,
                                           const std::vector<Shape>& shapes) const {
  return state_->load_stacked(names, shapes, Use::bias, block_);
}

Tensor Weights::load_conv(const std::string& name, const Shape& file_shape) const {
  assert(file_shape.rank() == 4);
  return state_->load(name, file_shape, Use::convolution, block_);
}

const std::vector<Parameter>& Weights::parameters() const { return state_->parameters; }

void Weights::save(const fs::path& file, DType dtype) const {
  std::map<std::string, Tensor> tensors = state_->as_read;
  for (const auto& [name, loaded] : state_->loaded) {
    const bool conv = loaded.value.rank() == 4;
    const Tensor value = loaded.value.detached();
    tensors[name] = cast(conv ? permute(value, {0, 3, 1, 2}) : reshape(value, loaded.file_shape), dtype);
  }
  // transformers refuses a file that does not say so
  save_safetensors(file, state_->source.as_stored(tensors), {{"format", "pt"}});
}

}  // namespace wick
