#include "wick/nn/weights.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

#include "wick/core/blocks.h"
#include "wick/io/count.h"
#include "wick/io/safetensors.h"
#include "wick/nn/gguf_model.h"
#include "wick/nn/named_seed.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick {

namespace {

namespace fs = std::filesystem;

const std::vector<int> kFileToMemory = {0, 2, 3, 1};  // [O, I, KH, KW] -> [O, KH, KW, I]
const std::vector<int> kMemoryToFile = {0, 3, 1, 2};

constexpr int64_t kPieceBytes = 2 << 20;  // of a file, read at once to be converted

bool is_pointwise(const Shape& stored, const Shape& matrix) {
  return matrix.rank() == 2 && stored == Shape{matrix[0], matrix[1], 1, 1};
}

// The file of a folder that holds all, or the index of its shards.
std::optional<fs::path> weights_in(const fs::path& folder) {
  for (const std::string stem : {"diffusion_pytorch_model", "model"})
    for (const std::string variant : {"", ".fp16"})
      for (const std::string& name : {stem + variant + ".safetensors", stem + ".safetensors.index" + variant + ".json"})
        if (fs::exists(folder / name)) return folder / name;
  return {};
}

}  // namespace

struct Weights::State {
  struct Loaded {
    Tensor value;
    Shape file_shape;
  };

  struct Stored {  // in a file
    Shape shape;
    std::string dtype_name;
    std::optional<DType> dtype;  // none of one that cannot be loaded
    std::function<Tensor(Memory&)> load;
    std::function<Memory::Filling(const View&)> filling;  // none where load() changes what the file has
  };

  struct Draw {
    uint64_t seed;
    float deviation;
    Tensor operator()(const std::string& name, const Shape& shape, Memory& memory) const;
  };

  Options options;
  std::string source;                             // the file or folder, for errors
  std::unordered_map<std::string, Stored> files;  // by the tensors' names
  std::map<std::string, Tensor> tensors;          // those in memory
  bool outline = false;
  std::optional<Draw> draw;  // instead of anything stored

  std::map<std::string, Loaded> loaded;
  std::map<std::string, StackedTensor> stacks;  // by the first name in them
  std::vector<Parameter> parameters;
  std::vector<Memory::Filling> deferred;  // into tensors that were handed out

  void add_file(const fs::path& path);
  void add_shards(const fs::path& index);
  void add_gguf(const fs::path& path);
  void add(const std::string& name, const std::shared_ptr<SafetensorsFile>& file);
  Shape stored_shape(const std::string& name) const;
  Tensor read(const std::string& name) const;  // what is in a file, where it belongs: that is where it is converted
  DType dtype_of(const std::string& name, const Shape& shape) const;
  void check_quantizable(const std::string& name, DType stored, const Shape& shape, DType dtype) const;
  void check_shape(const std::string& name, const Shape& shape) const;
  Tensor converted(const std::string& name, const Shape& shape, bool conv) const;
  bool converts_rows(const std::string& name, const Shape& shape) const;
  void read_rows(const Tensor& to, const std::string& name) const;
  bool defers(const std::string& name, const Shape& shape) const;
  void read_into(const Tensor& rows, const std::string& name);
  Tensor keep(const std::string& name, Tensor value, const Shape& shape);
  Tensor load(const std::string& name, const Shape& shape, bool conv);
  StackedTensor load_stacked(const std::vector<std::string>& names, const std::vector<Shape>& shapes);
};

void Weights::State::add_file(const fs::path& path) {
  const auto file = std::make_shared<SafetensorsFile>(SafetensorsFile::open(path));
  for (const auto& [name, info] : file->tensors()) add(name, file);
}

void Weights::State::add_shards(const fs::path& index) {
  std::map<std::string, std::shared_ptr<SafetensorsFile>> shards;
  for (const auto& [name, file_name] : read_safetensors_index(index)) {
    auto& shard = shards[file_name];
    if (!shard) shard = std::make_shared<SafetensorsFile>(SafetensorsFile::open(index.parent_path() / file_name));
    check(shard->has(name), "{}: has no tensor \"{}\", which {} says is there", shard->path().string(), name,
          index.filename().string());
    add(name, shard);
  }
}

// transformers 5 writes CLIPTextModel without the prefix that its names had before: they are found with it too.
void Weights::State::add(const std::string& name, const std::shared_ptr<SafetensorsFile>& file) {
  const TensorInfo& info = file->tensors().at(name);
  const Stored stored{info.shape, info.dtype_name, info.dtype, [=](Memory& memory) { return file->load(name, memory); },
                      [=](const View& to) { return file->filling(name, to); }};
  files[name] = stored;
  for (const char* part : {"embeddings.", "encoder.", "final_layer_norm."})
    if (name.starts_with(part)) files.try_emplace("text_model." + name, stored);
}

// Those that transformers has a name for, with their rows in its order.
void Weights::State::add_gguf(const fs::path& path) {
  const auto file = std::make_shared<GgufFile>(GgufFile::open(path));
  for (const auto& [gguf_name, info] : file->tensors()) {
    const std::string name = transformers_name(gguf_name);
    if (name.empty()) continue;
    const int64_t heads = heads_of_pairs(file->metadata(), gguf_name);
    files[name] = {info.shape, info.type_name, info.dtype,
                   [=, here = gguf_name](Memory& memory) {
                     if (heads == 0) return file->load(here, memory);
                     return pairs_to_halves(file->load(here), heads).to(memory);
                   },
                   nullptr};
    if (heads == 0) files[name].filling = [=, here = gguf_name](const View& to) { return file->filling(here, to); };
  }
}

Tensor Weights::State::Draw::operator()(const std::string& name, const Shape& shape, Memory& memory) const {
  if (shape.rank() == 1) return full(shape, name.ends_with("weight") ? 1 : 0, DType::f32, memory);
  Rng rng(named_seed(seed, name), Stream::init);
  return random_normal(shape, rng, memory) * deviation;
}

Shape Weights::State::stored_shape(const std::string& name) const {
  if (const auto found = files.find(name); found != files.end()) return found->second.shape;
  const auto found = tensors.find(name);
  check(found != tensors.end(), "{}: has no tensor \"{}\"", source, name);
  return found->second.shape();
}

Tensor Weights::State::read(const std::string& name) const {
  const auto found = files.find(name);
  if (found == files.end()) return tensors.at(name);
  return found->second.load(*options.place.memory);
}

DType Weights::State::dtype_of(const std::string& name, const Shape& shape) const {
  if (options.trainable || shape.rank() == 1) return DType::f32;
  const auto stored = files.find(name);
  if (options.as_stored && stored != files.end() && stored->second.dtype) return *stored->second.dtype;
  return is_block(options.dtype) && shape.rank() != 2 ? DType::f32 : options.dtype;
}

void Weights::State::check_quantizable(const std::string& name, DType stored, const Shape& shape, DType dtype) const {
  if (!is_block(dtype) || stored == dtype) return;
  check(can_quantize_to(dtype), "{}: \"{}\" is {}; Wick quantises to q8_0 and q4_0, and reads {}", source, name,
        name_of(stored), name_of(dtype));
  const int64_t width = shape[1], block = block_of(dtype).elements;
  check(width % block == 0, "{}: \"{}\" has rows of {}, which are not whole blocks of {}: it cannot be {}", source,
        name, count_of(width, "element"), block, name_of(dtype));
}

void Weights::State::check_shape(const std::string& name, const Shape& shape) const {
  if (draw) return;
  const Shape file_shape = stored_shape(name);
  check(file_shape == shape || is_pointwise(file_shape, shape), "{}: \"{}\" should have shape {}, found {}", source,
        name, shape, file_shape);
}

// Is it a matrix of a file, on the host, that is wanted in another type?
bool Weights::State::converts_rows(const std::string& name, const Shape& shape) const {
  const auto stored = files.find(name);
  if (draw || stored == files.end() || !stored->second.filling || !options.place.memory->on_host()) return false;
  const std::optional<DType>& dtype = stored->second.dtype;
  return shape.rank() == 2 && dtype && (is_float(*dtype) || is_block(*dtype)) && dtype != dtype_of(name, shape);
}

// A few rows at a time: no copy of all of them, as they are in the file or in f32, lies beside what is made of them.
void Weights::State::read_rows(const Tensor& to, const std::string& name) const {
  const Stored& stored = files.at(name);
  check_quantizable(name, *stored.dtype, stored.shape, to.dtype());
  const int64_t rows = to.shape()[0], width = to.shape()[1], bytes = bytes_of(*stored.dtype, width);
  const int64_t most = std::clamp<int64_t>(kPieceBytes / std::max<int64_t>(bytes, 1), 1, std::max<int64_t>(rows, 1));
  // Not a tensor: chunks of malloc's own alignment fit again where the last one was, so that they leave no holes.
  std::vector<char> piece(size_t(most * bytes));
  const Memory::Source read_file = stored.filling({}).source;
  for (int64_t begin = 0; begin < rows; begin += most) {
    const Shape part{std::min(most, rows - begin), width};
    read_file(piece.data(), size_t(begin * bytes), size_t(part[0] * bytes));
    to.backend().copy(to.window(part, to.stride(), begin * width),
                      {piece.data(), *stored.dtype, part, contiguous_strides(part)});
  }
}

// As layers see it, where it belongs.
Tensor Weights::State::converted(const std::string& name, const Shape& shape, bool conv) const {
  check_shape(name, shape);
  if (!conv && converts_rows(name, shape)) {
    check_quantizable(name, *files.at(name).dtype, shape, dtype_of(name, shape));
    const Tensor rows = Tensor::empty(shape, dtype_of(name, shape), *options.place.memory);
    read_rows(rows, name);
    return rows;
  }
  const Tensor stored = draw ? (*draw)(name, shape, *options.place.memory) : read(name);
  check(is_float(stored.dtype()) || is_block(stored.dtype()), "{}: \"{}\" should be f32, f16 or bf16, found {}", source,
        name, name_of(stored.dtype()));
  const DType dtype = dtype_of(name, shape);
  check_quantizable(name, stored.dtype(), stored.shape(), dtype);
  const Tensor x = reshape(stored, shape);
  const Tensor value = cast(conv ? contiguous(permute(x, kFileToMemory)) : x, dtype);
  return contiguous(value.to(*options.place.memory));
}

// Does the file hold it as it is wanted?
bool Weights::State::defers(const std::string& name, const Shape& shape) const {
  const auto stored = files.find(name);
  return options.deferred && !options.trainable && stored != files.end() && stored->second.filling &&
         stored->second.dtype == dtype_of(name, shape);
}

// Into contiguous rows of what is handed out: now or later.
void Weights::State::read_into(const Tensor& rows, const std::string& name) {
  if (defers(name, rows.shape()))
    deferred.push_back(files.at(name).filling(rows));
  else if (converts_rows(name, rows.shape()))
    read_rows(rows, name);
  else
    rows.backend().copy(rows, converted(name, rows.shape(), false));
}

// Hands out `value`, which is the tensor of this name.
Tensor Weights::State::keep(const std::string& name, Tensor value, const Shape& shape) {
  if (options.trainable) {
    value = value.trainable();
    parameters.push_back({name, value});
  } else {
    value = value.constant();
  }
  loaded[name] = {value, outline || draw ? shape : stored_shape(name)};
  return value;
}

Tensor Weights::State::load(const std::string& name, const Shape& shape, bool conv) {
  if (const auto found = loaded.find(name); found != loaded.end()) return found->second.value;
  const MemoryScope scope(Purpose::weights);
  if (outline) {
    const Shape memory_shape = conv ? Shape{shape[0], shape[2], shape[3], shape[1]} : shape;
    return keep(name, Tensor::empty(memory_shape, dtype_of(name, shape), *options.place.memory), shape);
  }
  if (!conv && defers(name, shape)) {
    check_shape(name, shape);
    const Tensor later = Tensor::empty(shape, dtype_of(name, shape), *options.place.memory);
    read_into(later, name);
    return keep(name, later, shape);
  }
  Tensor value = converted(name, shape, conv);
  // A map's tensors stay the caller's: training must not write into them.
  if (options.trainable && tensors.contains(name)) value = clone(value);
  return keep(name, value, shape);
}

StackedTensor Weights::State::load_stacked(const std::vector<std::string>& names, const std::vector<Shape>& shapes) {
  if (names.size() == 1) return {load(names.front(), shapes.front(), false), {}};
  if (const auto found = stacks.find(names.front()); found != stacks.end()) return found->second;
  // What a config asks for is not allocated before the files are known to hold it.
  for (size_t i = 0; i < names.size() && !outline; ++i) check_shape(names[i], shapes[i]);
  const MemoryScope scope(Purpose::weights);
  Shape all = shapes.front();
  for (size_t i = 1; i < shapes.size(); ++i) all[0] += shapes[i][0];
  StackedTensor stack{Tensor::empty(all, dtype_of(names.front(), all), *options.place.memory), {}};
  int64_t begin = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    check(!loaded.contains(names[i]), "{}: \"{}\" is loaded already, apart from {}", source, names[i], names.front());
    check(dtype_of(names[i], shapes[i]) == stack.whole.dtype(), "{}: \"{}\" is {}, and {} is {}: they do not stack",
          source, names[i], name_of(dtype_of(names[i], shapes[i])), names.front(), name_of(stack.whole.dtype()));
    const Tensor rows = stack.whole.window(shapes[i], stack.whole.stride(), begin);
    begin += shapes[i].numel();
    if (!outline) read_into(rows, names[i]);
    const Tensor kept = keep(names[i], rows, shapes[i]);
    if (options.trainable) stack.parts.push_back(kept);
  }
  if (!options.trainable) stack.whole = stack.whole.constant();
  return stacks[names.front()] = stack;
}

Weights::Weights(std::shared_ptr<State> state) : state_(std::move(state)) {}

Weights Weights::open(const fs::path& path, Options options) {
  Weights weights(std::make_shared<State>());
  State& state = *weights.state_;
  state.options = options;
  state.source = path.string();
  if (!fs::is_directory(path)) {
    GgufFile::is_gguf(path) ? state.add_gguf(path) : state.add_file(path);
    return weights;
  }
  const std::optional<fs::path> found = weights_in(path);
  check(found.has_value(),
        "{}: should hold diffusion_pytorch_model.safetensors or model.safetensors, or an index of shards of them",
        path.string());
  state.source = found->string();
  found->extension() == ".json" ? state.add_shards(*found) : state.add_file(*found);
  return weights;
}

bool Weights::is_here(const fs::path& folder) { return weights_in(folder).has_value(); }

Weights Weights::of(std::map<std::string, Tensor> tensors, Options options) {
  Weights weights(std::make_shared<State>());
  weights.state_->options = options;
  weights.state_->source = "weights in memory";
  weights.state_->tensors = std::move(tensors);
  return weights;
}

Weights Weights::outline(Options options) {
  assert(!options.place.memory->on_host() && "values that nobody has should not take memory");
  Weights weights(std::make_shared<State>());
  weights.state_->options = options;
  weights.state_->source = "outline";
  weights.state_->outline = true;
  return weights;
}

Weights Weights::drawn(uint64_t seed, float deviation, Options options) {
  Weights weights(std::make_shared<State>());
  weights.state_->options = options;
  weights.state_->source = "random weights";
  weights.state_->draw = State::Draw{seed, deviation};
  return weights;
}

Residence Residence::on(Backend& backend, DType weights) { return {&backend.memory(), backend.computes_in(weights)}; }

void Weights::read_deferred() const { state_->options.place.memory->fill(std::exchange(state_->deferred, {})); }

const Residence& Weights::place() const { return state_->options.place; }

bool Weights::is_outline() const { return state_->outline; }

bool Weights::has(const std::string& name) const {
  return state_->outline || state_->draw || state_->files.contains(name) || state_->tensors.contains(name);
}

bool Weights::is_copy(const std::string& name, const std::string& other) const {
  const State::Stored &a = state_->files.at(name), &b = state_->files.at(other);
  if (a.shape != b.shape || a.dtype_name != b.dtype_name || !a.dtype || !a.filling || !b.filling) return false;
  const Memory::Source read_a = a.filling({}).source, read_b = b.filling({}).source;
  const auto bytes = size_t(bytes_of(*a.dtype, a.shape.numel()));
  std::vector<char> piece(kPieceBytes), other_piece(kPieceBytes);
  for (size_t begin = 0; begin < bytes; begin += piece.size()) {
    const size_t count = std::min(piece.size(), bytes - begin);
    read_a(piece.data(), begin, count);
    read_b(other_piece.data(), begin, count);
    if (std::memcmp(piece.data(), other_piece.data(), count) != 0) return false;
  }
  return true;
}

DType Weights::dtype_of(const std::string& name, const Shape& shape) const { return state_->dtype_of(name, shape); }

DType Weights::stored_dtype(const std::string& name, const Shape& shape) const {
  state_->check_shape(name, shape);
  const auto found = state_->files.find(name);
  if (found == state_->files.end()) return state_->tensors.at(name).dtype();
  const State::Stored& stored = found->second;
  check(stored.dtype && (is_float(*stored.dtype) || is_block(*stored.dtype)),
        "{}: \"{}\" is {}, which Wick does not compute with", state_->source, name, stored.dtype_name);
  return *stored.dtype;
}

void Weights::check_storable(const std::string& name, const Shape& shape, DType dtype) const {
  state_->check_quantizable(name, stored_dtype(name, shape), shape, dtype);
}

Tensor Weights::read(const std::string& name, const Shape& shape) const {
  state_->check_shape(name, shape);
  const auto stored = state_->files.find(name);
  return reshape(stored == state_->files.end() ? state_->tensors.at(name) : stored->second.load(host_memory()), shape);
}

Tensor Weights::load(const std::string& name, const Shape& shape) const { return state_->load(name, shape, false); }

StackedTensor Weights::load_stacked(const std::vector<std::string>& names, const std::vector<Shape>& shapes) const {
  return state_->load_stacked(names, shapes);
}

Tensor Weights::load_conv(const std::string& name, const Shape& file_shape) const {
  assert(file_shape.rank() == 4);
  return state_->load(name, file_shape, true);
}

const std::vector<Parameter>& Weights::parameters() const { return state_->parameters; }

void Weights::save(const fs::path& file, DType dtype) const {
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, loaded] : state_->loaded) {
    const bool conv = loaded.value.rank() == 4;
    const Tensor value = loaded.value.detached();
    tensors[name] = cast(conv ? permute(value, kMemoryToFile) : reshape(value, loaded.file_shape), dtype);
  }
  save_safetensors(file, tensors, {{"format", "pt"}});  // transformers refuses a file that does not say so
}

}  // namespace wick
