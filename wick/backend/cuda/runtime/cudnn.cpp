// The only file that sees cudnn-frontend, which takes long to compile.
#include "wick/backend/cuda/runtime/cudnn.h"

#include <dlfcn.h>

#include <bit>
#include <cstdlib>
#include <string_view>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "wick/backend/cuda/runtime/dense.h"
#include "wick/backend/scratch.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // where the frontend finds the library's functions
}

namespace wick {
namespace {

namespace fe = cudnn_frontend;
using Tensor4 = std::shared_ptr<fe::graph::Tensor_attributes>;
using Dims = std::vector<int64_t>;

// WICK_CUDNN=off leaves it closed, to test the kernels that replace it where it is missing.
void* open_library() {
  const char* wanted = std::getenv("WICK_CUDNN");
  return wanted && wanted == std::string_view("off") ? nullptr : dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
}

void* library() {
  static void* const handle = fe::cudnn_dlhandle = open_library();
  return handle;
}

fe::DataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return fe::DataType_t::BFLOAT16;
    case DType::f16:
      return fe::DataType_t::HALF;
    case DType::f32:
      return fe::DataType_t::FLOAT;
    default:
      fail("cuDNN: expected a float tensor, found {}", name_of(dtype));
  }
}

Dims order(const Shape& s, const int (&axes)[4]) { return {s[axes[0]], s[axes[1]], s[axes[2]], s[axes[3]]}; }

// A dim of extent 1 may have any stride; cuDNN would read a meaning into it.
Shape tidy_strides(const View& v) {
  Shape stride = v.stride;
  for (int d = v.rank() - 1; d >= 0; --d)
    if (v.shape[d] == 1) stride[d] = d + 1 < v.rank() ? v.shape[d + 1] * stride[d + 1] : 1;
  return stride;
}

constexpr int kChannelsSecond[4] = {0, 3, 1, 2};  // cuDNN names dims N, C, H, W and O, I, KH, KW
constexpr int kHeadsSecond[4] = {0, 2, 1, 3};     // and B, H, T, D

// Tensors are told apart by their place in the list that execute() gets.
void describe(const Tensor4& tensor, int64_t place, const View& v, const int (&axes)[4]) {
  tensor->set_uid(place).set_data_type(data_type(v.dtype)).set_dim(order(v.shape, axes));
  tensor->set_stride(order(tidy_strides(v), axes));
}
Tensor4 input(fe::graph::Graph& graph, int64_t place, const View& v, const int (&axes)[4]) {
  const auto tensor = graph.tensor(fe::graph::Tensor_attributes());
  describe(tensor, place, v, axes);
  return tensor;
}
void output(const Tensor4& tensor, int64_t place, const View& v, const int (&axes)[4]) {
  describe(tensor, place, v, axes);
  tensor->set_output(true);
}

// lse [B, H, T] as [B, H, T, 1]. Exactly packed, or cuDNN refuses it.
void describe_statistics(const Tensor4& tensor, int64_t place, const View& lse) {
  const Shape& n = lse.shape;
  tensor->set_uid(place).set_data_type(data_type(lse.dtype)).set_dim({n[0], n[1], n[2], 1});
  tensor->set_stride({n[1] * n[2], n[2], 1, 1});
}

template <class Attributes>
Attributes convolution_attributes(const Conv2d& c) {
  Attributes attributes;
  attributes.set_pre_padding({c.top, c.left}).set_post_padding({c.bottom, c.right});
  attributes.set_stride({c.stride, c.stride}).set_dilation({1, 1});
  return attributes;
}

enum Operation : int64_t { kConvolution, kBackwardInput, kBackwardWeight, kAttention, kAttentionBackward };

// An operation with its numbers, and its views.
std::vector<int64_t> key_of(std::vector<int64_t> key, std::initializer_list<View> views) {
  for (const View& v : views) {
    key.push_back(v ? int64_t(v.dtype) : -1);
    for (int d = 0; v && d < v.rank(); ++d) key.insert(key.end(), {v.shape[d], v.stride[d]});
  }
  return key;
}

// Before 9.16 the backward pass reads past the last key unless their number is a multiple of 128 or masked.
bool needs_lengths(int64_t keys) { return keys % 128 != 0 && fe::detail::get_backend_version() < 91600; }

}  // namespace

struct Cudnn::Plan {
  fe::graph::Graph graph;
  int64_t workspace = 0;
};

bool Cudnn::found() { return library() != nullptr; }

std::string Cudnn::describe() {
  if (!library()) return "cuDNN 9: not found; convolution and attention run on our own kernels and cuBLASLt";
  const size_t v = fe::detail::get_backend_version();
  return fmt::format("cuDNN {}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

Cudnn::Cudnn(cudaStream_t stream) {
  if (!library()) return;
  int device = 0, major = 0, minor = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  capability_ = 10 * major + minor;
  cudnnHandle_t handle = nullptr;
  cudnnStatus_t status = fe::detail::create_handle(&handle);
  if (status == CUDNN_STATUS_SUCCESS) status = fe::detail::set_stream(handle, stream);
  check(status == CUDNN_STATUS_SUCCESS, "{} was found but does not start on this device: {}", describe(),
        fe::detail::get_error_string(status));
  handle_ = handle;
}

Cudnn::~Cudnn() {
  plans_.clear();
  if (handle_) fe::detail::destroy_handle(static_cast<cudnnHandle_t>(handle_));
}

// Chooses a kernel. f32 stays f32: no tensor cores unless TF32 is allowed, no Winograd or FFT.
bool Cudnn::finish(Plan& plan, DType dtype) {
  using Note = fe::NumericalNote_t;
  std::vector<Note> refused{
      Note::NONDETERMINISTIC,  Note::REDUCED_PRECISION_REDUCTION, Note::WINOGRAD, Note::WINOGRAD_TILE_4x4,
      Note::WINOGRAD_TILE_6x6, Note::WINOGRAD_TILE_13x13,         Note::FFT};
  if (dtype == DType::f32 && !tf32_) refused.insert(refused.end(), {Note::TENSOR_CORE, Note::DOWN_CONVERT_INPUTS});
  fe::graph::Graph& graph = plan.graph;
  const auto handle = static_cast<cudnnHandle_t>(handle_);
  if (graph.validate().is_bad() || graph.build_operation_graph(handle).is_bad()) return false;
  if (graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}).is_bad()) return false;
  graph.deselect_numeric_notes(refused);
  return graph.check_support().is_good() && graph.build_plans().is_good() &&
         graph.get_workspace_size(plan.workspace).is_good();
}

template <class Build>
Cudnn::Plan* Cudnn::plan(Key key, DType dtype, const Build& build) {
  if (!handle_) return nullptr;
  if (dtype == DType::f32) key.push_back(tf32_);
  const auto [at, created] = plans_.try_emplace(std::move(key));
  if (!created) return at->second.get();
  auto plan = std::make_unique<Plan>();
  const auto f32 = fe::DataType_t::FLOAT;
  plan->graph.set_io_data_type(data_type(dtype)).set_intermediate_data_type(f32).set_compute_data_type(f32);
  plan->graph.set_sm_version(capability_);
  build(plan->graph);
  if (finish(*plan, dtype)) at->second = std::move(plan);
  return at->second.get();
}

void Cudnn::execute(CudaBackend& cuda, Plan& plan, const std::vector<void*>& tensors) {
  const Scratch workspace(cuda, size_t(plan.workspace));
  std::unordered_map<int64_t, void*> places;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i]) places.emplace(int64_t(i), tensors[i]);
  auto status = plan.graph.execute(static_cast<cudnnHandle_t>(handle_), places, workspace.as<void>());
  check(status.is_good(), "cuDNN: a planned operation failed: {}", status.get_message());
}

template <class Make>
Cudnn::Plan* Cudnn::convolution_plan(int64_t operation, const View& y, const View& a, const View& b, const Conv2d& conv,
                                     const Make& make) {
  return plan(key_of({operation, conv.stride, conv.top, conv.left}, {y, a, b}), a.dtype, [&](auto& graph) {
    output(make(graph, input(graph, 1, a, kChannelsSecond), input(graph, 2, b, kChannelsSecond)), 0, y,
           kChannelsSecond);
  });
}

Cudnn::Plan* Cudnn::convolution_plan(const View& y, const View& x, const View& w, const Conv2d& conv) {
  return convolution_plan(kConvolution, y, x, w, conv, [&](auto& graph, const Tensor4& image, const Tensor4& weight) {
    return graph.conv_fprop(image, weight, convolution_attributes<fe::graph::Conv_fprop_attributes>(conv));
  });
}

bool Cudnn::convolution(CudaBackend& cuda, View y, View x, View w, Conv2d conv) {
  Plan* const p = convolution_plan(y, x, w, conv);
  if (p) execute(cuda, *p, {y.data, x.data, w.data});
  return p;
}

bool Cudnn::convolution_backward_input(CudaBackend& cuda, View dx, View dy, View w, Conv2d conv) {
  Plan* const p =
      convolution_plan(kBackwardInput, dx, dy, w, conv, [&](auto& graph, const Tensor4& grad, const Tensor4& weight) {
        return graph.conv_dgrad(grad, weight, convolution_attributes<fe::graph::Conv_dgrad_attributes>(conv));
      });
  if (p) execute(cuda, *p, {dx.data, dy.data, w.data});
  return p;
}

bool Cudnn::convolution_backward_weight(CudaBackend& cuda, View dw, View dy, View x, Conv2d conv) {
  Plan* const p =
      convolution_plan(kBackwardWeight, dw, dy, x, conv, [&](auto& graph, const Tensor4& grad, const Tensor4& image) {
        if (dy.dtype == DType::f32) graph.deselect_workspace_greater_than(kConvolutionScratch);
        return graph.conv_wgrad(grad, image, convolution_attributes<fe::graph::Conv_wgrad_attributes>(conv));
      });
  if (p) execute(cuda, *p, {dw.data, dy.data, x.data});
  return p;
}

Cudnn::Plan* Cudnn::attention_plan(const AttentionArgs& a) {
  const auto build = [&](fe::graph::Graph& g) {
    auto attributes = fe::graph::SDPA_attributes().set_generate_stats(true).set_attn_scale(a.scale);
    if (a.causal) attributes.set_causal_mask(true);
    const auto [result, stats] = g.sdpa(input(g, 2, a.q, kHeadsSecond), input(g, 3, a.k, kHeadsSecond),
                                        input(g, 4, a.v, kHeadsSecond), attributes);
    output(result, 0, a.y, kHeadsSecond);
    describe_statistics(stats, 1, a.lse);
    stats->set_output(true);
  };
  return plan(key_of({kAttention, std::bit_cast<int32_t>(a.scale), a.causal}, {a.y, a.q, a.k, a.v}), a.q.dtype, build);
}

bool Cudnn::attention(CudaBackend& cuda, const AttentionArgs& a) {
  Plan* const p = attention_plan(a);
  if (p) execute(cuda, *p, {a.y.data, a.lse.data, a.q.data, a.k.data, a.v.data});
  return p;
}

void Cudnn::warm_up() {
  Cudnn alone(nullptr);
  const auto view = [](DType dtype, const Shape& shape) {
    return contiguous_view(reinterpret_cast<void*>(uintptr_t{256}), dtype, shape);  // nothing runs
  };
  const View image = view(DType::bf16, {1, 64, 64, 64}), heads = view(DType::bf16, {1, 1024, 8, 64});
  alone.convolution_plan(image, image, view(DType::bf16, {64, 3, 3, 64}),
                         {.top = 1, .left = 1, .bottom = 1, .right = 1});
  alone.attention_plan({.y = heads, .lse = view(DType::f32, {1, 8, 1024}), .q = heads, .k = heads, .v = heads});
}

bool Cudnn::attention_backward(CudaBackend& cuda, const AttentionArgs& a, const AttentionGradients& grads) {
  if (!handle_) return false;
  const int64_t entries = a.q.shape[0];
  const bool lengths = needs_lengths(a.k.shape[1]);
  const Held queries(cuda, DType::i32, {entries}), keys(cuda, DType::i32, {entries});
  const auto length = [&](fe::graph::Graph& g, int64_t place) {
    return g.tensor(fe::graph::Tensor_attributes()
                        .set_uid(place)
                        .set_data_type(fe::DataType_t::INT32)
                        .set_dim({entries, 1, 1, 1})
                        .set_stride({1, 1, 1, 1}));
  };
  const auto build = [&](fe::graph::Graph& g) {
    auto attributes = fe::graph::SDPA_backward_attributes().set_attn_scale(a.scale).set_deterministic_algorithm(true);
    if (a.causal) attributes.set_causal_mask(true);
    if (lengths) attributes.set_padding_mask(true).set_seq_len_q(length(g, 9)).set_seq_len_kv(length(g, 10));
    const auto stats = g.tensor(fe::graph::Tensor_attributes());
    describe_statistics(stats, 5, a.lse);
    const auto [dq, dk, dv] =
        g.sdpa_backward(input(g, 6, a.q, kHeadsSecond), input(g, 7, a.k, kHeadsSecond), input(g, 8, a.v, kHeadsSecond),
                        input(g, 4, a.y, kHeadsSecond), input(g, 3, grads.dy, kHeadsSecond), stats, attributes);
    output(dq, 0, grads.dq, kHeadsSecond);
    output(dk, 1, grads.dk, kHeadsSecond);
    output(dv, 2, grads.dv, kHeadsSecond);
  };
  Plan* const p = plan(key_of({kAttentionBackward, std::bit_cast<int32_t>(a.scale), a.causal},
                              {grads.dq, grads.dk, grads.dv, grads.dy, a.y, a.q, a.k, a.v}),
                       a.q.dtype, build);
  if (!p) return false;
  if (lengths) {
    cuda.fill(queries.view(), float(a.q.shape[1]));
    cuda.fill(keys.view(), float(a.k.shape[1]));
  }
  execute(cuda, *p,
          {grads.dq.data, grads.dk.data, grads.dv.data, grads.dy.data, a.y.data, a.lse.data, a.q.data, a.k.data,
           a.v.data, lengths ? queries.view().data : nullptr, lengths ? keys.view().data : nullptr});
  return true;
}

}  // namespace wick
