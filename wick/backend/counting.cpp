#include "wick/backend/counting.h"

#include <algorithm>

#include "wick/backend/views.h"
#include "wick/core/error.h"

namespace wick {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// The memory of processes beyond their tensors (bench/results/plan-cpu-2026-11-21.md): 41 to 153 MiB with language
// models.
constexpr DeviceKind kCpu{.name = "cpu",
                          .is_device = false,
                          .workspace = 0,
                          .context = 80 * kMiB,
                          .context_of = "the program, and scratch of the kernels",
                          .rates = {1e12, 20e9, 10e9, 10e9}};

// Measured on two H200 of one host, joined by NVLink, with NCCL 2.28 and sums in a captured step: 1086 MiB more than a
// run alone took of each (bench/results/gpu-check-gpus-h200-2026-11-26.md). NCCL_MAX_NCHANNELS lowers it.
constexpr size_t kNccl = 1088 * kMiB;
// The room of pieces that are summed (peers.cu): half of it on two devices, and less than all of it on any number.
constexpr size_t kPeers = 96 * kMiB;

// Measured on an H100 (bench/results/plan-h100-2026-11-21.md): 590 MiB for the context with our kernels, cuBLASLt's
// workspace, the libraries' kernels and the graphs of three shapes of batches; 579 to 645 on an H200. A run lays its
// tensors out a little otherwise than it is counted: of 15 on an H200 three took one segment more than planned
// (bench/results/gpu-check-memory-h200-2026-11-24.md).
constexpr DeviceKind kCuda{.name = "cuda",
                           .is_device = true,
                           .workspace = Segments::kUnit,
                           .context = 640 * kMiB,
                           .context_of = "CUDA's context, libraries and graphs",
                           .rates = {},
                           .collectives = kNccl,
                           .collectives_by = "NCCL"};

// What training reaches of a card that people train on: 0.56 of the peak of dense products in 16 bits with sums in f32,
// 0.83 of the memory's, 0.86 of PCIe's. 9.0 is measured, FLUX.1 on an H200
// (bench/results/gpu-check-memory-h200-2026-11-23.md; its host's copies in that of 2026-11-24); the others are those
// shares of their makers' data sheets, with hosts that are servers or desktops with two channels of DDR4.
constexpr double kServer = 28e9, kDesktop = 10e9;
struct Architecture {
  std::string_view name;
  Rates rates;
  bool own_attention;  // as plan_attention() of the CUDA backend has it
};
constexpr Architecture kArchitectures[] = {
    {"9.0", {550e12, 4.0e12, 55e9, kServer}, true},     // H200; the one that stands for what is not listed
    {"7.5", {36e12, 0.27e12, 14e9, kServer}, false},    // T4
    {"8.0", {173e12, 1.6e12, 27e9, kServer}, true},     // A100
    {"8.6", {40e12, 0.78e12, 27e9, kDesktop}, true},    // RTX 3090
    {"8.9", {92e12, 0.84e12, 27e9, kDesktop}, true},    // RTX 4090
    {"10.0", {1250e12, 6.6e12, 55e9, kServer}, false},  // B200
    {"12.0", {117e12, 1.5e12, 55e9, kDesktop}, false},  // RTX 5090
};

[[noreturn]] void fail_reading() { fail("memory that only counts was read: it has no values to give"); }

struct Nothing final : Readback {
  const void* data() override { fail_reading(); }
};

}  // namespace

DeviceKind device_kind(std::string_view device, std::string_view architecture) {
  if (!device.starts_with("cuda")) return kCpu;
  DeviceKind kind = kCuda;
  const auto* found = std::ranges::find(kArchitectures, architecture, &Architecture::name);
  const Architecture& row = found == std::end(kArchitectures) ? kArchitectures[0] : *found;
  kind.rates = row.rates;
  kind.own_attention = row.own_attention;
  return kind;
}

DeviceKind among_peers(DeviceKind kind) {
  if (kind.collectives == 0) return kind;
  kind.collectives = kPeers;
  kind.collectives_by = "copy engines";
  return kind;
}

// Those of one direction come one after the other.
class CountingMemory::Travel : public Transfer {
 public:
  Travel(CountingMemory& memory, Direction direction) : memory_(memory), direction_(direction) {}
  void begin(void*, const void*, size_t bytes) override { begin(bytes, double(bytes) / memory_.rates_.fetched); }
  void await() override { memory_.now_ = std::max(memory_.now_, arrival_); }

 protected:
  void begin(size_t bytes, double seconds) {
    if (direction_ == Direction::to_device) memory_.fetched_ += double(bytes);
    double& busy_until = memory_.busy_until_[size_t(direction_)];
    arrival_ = busy_until = std::max(busy_until, memory_.now_) + seconds;
  }

 private:
  CountingMemory& memory_;
  Direction direction_;
  double arrival_ = 0;
};

// Copied on the host first.
class CountingMemory::StagedTravel final : public Travel {
 public:
  StagedTravel(CountingMemory& memory, size_t most)
      : Travel(memory, Direction::to_device), memory_(memory), most_(most), stage_(memory.host_side().allocate(most)) {}
  ~StagedTravel() override { memory_.host_side().release(stage_, most_); }
  void begin(void*, const void*, size_t bytes) override {
    Travel::begin(bytes, double(bytes) / memory_.rates_.fetched + double(bytes) / memory_.rates_.copied_on_host);
  }

 private:
  CountingMemory& memory_;
  size_t most_;
  void* stage_;
};

void* CountingMemory::allocate(size_t bytes) {
  if (!in_segments_) {
    count(bytes);
    most_taken_ = std::max(most_taken_, in_use());
    if (MemoryScope::current() != Purpose::weights)  // of which the newest is not held yet
      most_beside_weights_ = std::max(most_beside_weights_, in_use() - held(Purpose::weights));
    return this;  // an address that is not null
  }
  Segments& segments = arenas_ ? arena_segments_ : general_;
  std::optional<size_t> address = segments.allocate(bytes);
  if (!address) {
    segments.add(next_address_, Segments::segment_for(bytes));
    next_address_ += Segments::segment_for(bytes);
    address = segments.allocate(bytes);
  }
  count(segments.size_of(*address));
  most_taken_ = std::max(most_taken_, general_.taken() + arena_segments_.taken());
  return reinterpret_cast<void*>(*address);
}

void CountingMemory::release(void* data, size_t bytes) noexcept {
  if (!in_segments_) return uncount(bytes);
  const size_t address = reinterpret_cast<size_t>(data);
  Segments& segments = general_.holds(address) ? general_ : arena_segments_;
  uncount(segments.size_of(address));
  segments.release(address);
}

CountingMemory& CountingMemory::host_side() {
  if (!in_segments_) return *this;  // of the CPU
  if (!host_side_) host_side_ = std::make_unique<CountingMemory>(kCpu);
  return *host_side_;
}

std::unique_ptr<Transfer> CountingMemory::make_transfer(Direction direction) {
  return std::make_unique<Travel>(*this, direction);
}

CountingMemory& CountingMemory::staging_side() {
  if (!in_segments_) return *this;  // of the CPU
  if (!staging_side_) staging_side_ = std::make_unique<CountingMemory>(kCpu);
  return *staging_side_;
}

std::unique_ptr<Transfer> CountingMemory::make_staged_transfer(size_t most) {
  return std::make_unique<StagedTravel>(*this, most);
}

void CountingMemory::trim() { general_.trim(); }

void CountingMemory::read(void*, const void*, size_t) { fail_reading(); }
std::unique_ptr<Readback> CountingMemory::read_later(const void*, size_t) { return std::make_unique<Nothing>(); }

void CountingBackend::computes(double flops, double decoded) {
  flops_ += flops;
  decoded_ += decoded;
  memory_.compute(flops, decoded);
}

void CountingBackend::scratch(size_t bytes) { memory_.release(memory_.allocate(bytes), bytes); }

// A device decodes quantised rows for a product; the CPU a panel at a time, which is among what its context takes.
void CountingBackend::reads(const View& w, const View& x, const View& y, bool whole) {
  computes(2 * double(y.numel()) * double(x.dim(-1)));
  if (!is_quantized(w.dtype)) return;
  const auto decode = [&](const View&) {
    computes(0, double(byte_offset(w, w.numel())) + 2 * double(w.numel()) * double(size_of(x.dtype)));
  };
  if (kind_.is_device && whole) return (void)decoded_weights_(w, x.dtype, memory_, decode);
  decode({});
  if (kind_.is_device && x.numel() > kRowsOverBlocks * x.dim(-1))
    scratch(size_t(std::min(w.numel(), kSliceElements)) * size_of(x.dtype));
}

// A device multiplies codes at twice the rate of numbers of 16 bits. Before that it reads x and writes its codes; for
// dx it also reads the codes of w and writes them transposed.
void CountingBackend::multiplies_codes(const View& w, const View& x, const View& y, const Fp8Scratch& work) {
  computes(double(y.numel()) * double(x.dim(-1)),
           double(x.numel()) * double(size_of(x.dtype)) + double(work.bytes) + double(w.numel()));
  scratch(work.bytes);
}

void CountingBackend::multiplies(const View& w, const View& x, const View& y, bool whole) {
  if (!kind_.is_device || w.dtype != DType::fp8_product || x.numel() == 0) return reads(w, x, y, whole);
  multiplies_codes(w, x, y, Fp8Scratch::of_linear(x.numel() / x.dim(-1), w.shape));
}

void CountingBackend::multiplies_back(const View& y, const View& x, const View& w, bool whole) {
  if (!kind_.is_device || w.dtype != DType::fp8_product || x.numel() == 0) return reads(w, x, y, whole);
  multiplies_codes(w, x, y, Fp8Scratch::of_dx(x.numel() / x.dim(-1), w.shape));
}

void CountingBackend::attention(const AttentionArgs& a) {
  computes(4 * double(a.q.numel()) * double(a.k.dim(1)));
  if (!kind_.is_device || a.q.dtype != DType::f32 || !(a.ranges || a.q.shape[2] != a.k.shape[2])) return;
  scratch(AttentionRows(a.q.shape, a.k.shape, bool(a.ranges), false).scratch);
}

void CountingBackend::attention_backward(const AttentionArgs& a, const AttentionGradients&) {
  computes(10 * double(a.q.numel()) * double(a.k.dim(1)));
  if (!kind_.is_device || a.q.numel() == 0) return;
  const bool by_ours = kind_.own_attention && a.q.shape[3] <= kAttentionMmaFeatures;
  if (a.q.dtype != DType::f32)
    scratch(by_ours ? 4 * size_t(a.q.numel() / a.q.shape[3]) : AttentionParts(a.q.shape, a.k.shape[1]).scratch);
  else if (a.ranges || a.q.shape[2] != a.k.shape[2])
    scratch(AttentionRows(a.q.shape, a.k.shape, bool(a.ranges), true).scratch);
}

// Copies of what cuDNN wants in another shape: all at once, as they lie beside each other.
std::vector<Tensor> CountingBackend::padded(const View& x, const View& y, const View& w, const Conv2d& conv,
                                            DType dtype) {
  const bool is_linear = w.shape[1] == 1 && w.shape[2] == 1;
  if (!kind_.is_device || is_linear || y.numel() == 0) return {};
  const ConvolutionPadding padding(x.shape, y.shape, w.shape, conv, dtype);
  std::vector<Tensor> copies;
  for (const auto& [shape, given] : {std::pair(padding.x, x.shape), {padding.y, y.shape}, {padding.w, w.shape}})
    if (shape != given) copies.push_back(Tensor::empty(shape, dtype, memory_));
  return copies;
}

void CountingBackend::conv2d(View y, View x, View w, View, View, Conv2d conv) {
  computes(2 * double(y.numel()) * double(w.numel()) / double(w.dim(0)));
  padded(x, y, w, conv, x.dtype);
}

// The workspace of cuDNN's gradients in f32, measured on an H200 with 9.14: one of inputs copies its factors to another
// layout; one of weights takes 3.25 times both images where it may have as much.
void CountingBackend::conv2d_backward_input(View dx, View dy, View w, Conv2d conv) {
  const std::vector<Tensor> copies = padded(dx, dy, w, conv, dy.dtype);
  if (kind_.is_device && dy.dtype == DType::f32) scratch(4 * size_t(dx.numel() + dy.numel() + w.numel()));
}

void CountingBackend::conv2d_backward_weight(View dw, View, View dy, View x, Conv2d conv) {
  const std::vector<Tensor> copies = dw ? padded(x, dy, dw, conv, dy.dtype) : std::vector<Tensor>();
  const int64_t bytes = 13 * (x.numel() + dy.numel());
  if (kind_.is_device && dy.dtype == DType::f32 && bytes <= kConvolutionScratch) scratch(size_t(bytes));
}

void CountingBackend::gated_linear(View y, View x, View w, View, const LoraFactors&) {
  const Tensor both = Tensor::empty(with_last(y.shape, w.shape[0]), y.dtype, memory_);
  multiplies(w, x, both, has_row_format(w.dtype));
}

void CountingBackend::optimizer_step(const std::vector<OptimizerSlot>& slots, const OptimizerStep& step, View) {
  if (!kind_.is_device || step.rule.kind != OptimizerKind::adafactor) return;
  std::vector<AdafactorTiles> tiles;
  for (const OptimizerSlot& slot : slots) tiles.emplace_back(slot.param.shape);
  for_adafactor_groups(tiles, [&](size_t, size_t, int64_t floats) { scratch(size_t(floats) * sizeof(float)); });
}

void CountingBackend::rope_into_cache(const RopeIntoCacheArgs& a) { Tensor::empty(a.k.shape, a.k.dtype, memory_); }

}  // namespace wick
