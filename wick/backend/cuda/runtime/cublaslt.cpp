#include "wick/backend/cuda/runtime/cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "wick/backend/cuda/runtime/check.h"

namespace wick {

namespace {

// The entry points that are used, by name from the library.
class Library {
  struct Symbol {
    void* address;
    template <class F>
    operator F() const {
      return reinterpret_cast<F>(address);
    }
  };

  static void* open() {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
      if (void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return handle;
    fail(
        "cuBLASLt: neither libcublasLt.so.13 nor libcublasLt.so.12 was found; install CUDA's libraries, or put their "
        "folder into LD_LIBRARY_PATH");
  }
  Symbol find(const char* name) const {
    void* const address = dlsym(handle_, name);
    check(address != nullptr, "cuBLASLt: the library found has no {}; version 12 or 13 is needed", name);
    return {address};
  }
  void* handle_ = open();  // stays open: the driver may still call into it when the process ends

 public:
  decltype(&cublasLtCreate) create = find("cublasLtCreate");
  decltype(&cublasLtDestroy) destroy = find("cublasLtDestroy");
  decltype(&cublasLtGetVersion) version = find("cublasLtGetVersion");
  decltype(&cublasLtGetStatusString) status_string = find("cublasLtGetStatusString");
  decltype(&cublasLtMatmul) matmul = find("cublasLtMatmul");
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = find("cublasLtMatmulAlgoGetHeuristic");
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algo_get = find("cublasLtMatmulAlgoConfigGetAttribute");
  decltype(&cublasLtMatmulDescCreate) desc_create = find("cublasLtMatmulDescCreate");
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = find("cublasLtMatmulDescDestroy");
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = find("cublasLtMatmulDescSetAttribute");
  decltype(&cublasLtMatrixLayoutCreate) layout_create = find("cublasLtMatrixLayoutCreate");
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = find("cublasLtMatrixLayoutDestroy");
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = find("cublasLtMatrixLayoutSetAttribute");
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = find("cublasLtMatmulPreferenceCreate");
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = find("cublasLtMatmulPreferenceDestroy");
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = find("cublasLtMatmulPreferenceSetAttribute");
};

const Library& lt() {
  static const Library library;
  return library;
}

void lt_check(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {} failed: {}", what, lt().status_string(status));
}

cudaDataType_t type_of(DType dtype) {
  if (dtype == DType::fp8) return CUDA_R_8F_E4M3;
  check(is_float(dtype), "cuBLASLt: expected a float matrix, found {}", name_of(dtype));
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

// The largest power of two, up to 256, that divides an address. WICK_CUBLASLT_ALIGNMENT = 4 keeps to kernels that load
// and store by themselves: compute-sanitizer neither runs other kernels reliably nor sees TMA's writes.
uint32_t alignment(const void* data, int64_t bytes_between = 0) {
  static const char* const given = std::getenv("WICK_CUBLASLT_ALIGNMENT");
  static const uintptr_t most = given ? uintptr_t(std::atoi(given)) : 256;
  const uintptr_t bits = reinterpret_cast<uintptr_t>(data) | uintptr_t(bytes_between) | most;
  return uint32_t(bits & (~bits + 1));
}

// Of each of its rows, and of those of a batch: told of an aligned address alone, cuBLASLt 13 takes a kernel that
// writes two elements at a time into rows of an odd length.
uint32_t alignment(const DeviceMatrix& m, int64_t step) {
  constexpr int64_t kEnough = 16;
  const int64_t lines = m.transposed ? m.cols : m.rows, size = m.dtype == DType::fp8 ? 1 : int64_t(size_of(m.dtype));
  const auto apart = [&](int64_t elements) { return elements * size % kEnough == 0 ? 0 : elements * size; };
  return alignment(m.data, (lines > 1 ? apart(m.ld) : 0) | apart(step));
}

// A row-major matrix is its transpose to cuBLASLt, which counts by columns.
cublasLtMatrixLayout_t layout_of(const DeviceMatrix& m, int64_t count, int64_t step) {
  cublasLtMatrixLayout_t layout;
  const int64_t rows = m.transposed ? m.rows : m.cols, cols = m.transposed ? m.cols : m.rows;
  lt_check(lt().layout_create(&layout, type_of(m.dtype), uint64_t(rows), uint64_t(cols), std::max(m.ld, rows)),
           "describing a matrix");
  const int32_t matrices = int32_t(count);
  lt_check(lt().layout_set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &matrices, sizeof matrices), "a batch");
  lt_check(lt().layout_set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step), "a batch");
  return layout;
}

template <class T>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  lt_check(lt().desc_set(desc, attribute, &value, sizeof value), "describing a product");
}

template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  lt_check(lt().preference_set(preference, attribute, &value, sizeof value), "asking for an algorithm");
}

constexpr int kResults = 16;  // of cuBLASLt's list that are asked for

// Products x [rows, inner] w^T of 16 bits on 9.0 for which another kernel than cuBLASLt's first choice was measured to
// be faster, in whole steps of drawing (docs/kernels/drawing.md): by the kernel's tile.
struct Measured {
  int64_t rows, inner, cols;
  bool residual;
  uint32_t tile;
};
// cublasLtMatmulTile_t; old headers lack some.
constexpr uint32_t k320x64 = 247, k112x128 = 165, k192x128 = 31, k128x160 = 29;
constexpr Measured kMeasured[] = {{2048, 1280, 1280, true, k320x64},  {2048, 5120, 1280, true, k320x64},
                                  {8192, 640, 640, true, k112x128},   {8192, 2560, 640, true, k192x128},
                                  {8192, 640, 1920, false, k128x160}, {8192, 640, 640, false, k128x160}};

const Measured* measured(const DeviceMatrix& x, const DeviceMatrix& w, bool residual) {
  if ((x.dtype != DType::bf16 && x.dtype != DType::f16) || x.transposed || !w.transposed) return nullptr;
  const auto found = std::find_if(std::begin(kMeasured), std::end(kMeasured), [&](const Measured& m) {
    return m.rows == x.rows && m.inner == x.cols && m.cols == w.cols && m.residual == residual;
  });
  return found == std::end(kMeasured) ? nullptr : found;
}

bool has_tile(const cublasLtMatmulHeuristicResult_t& result, uint32_t wanted) {
  uint32_t tile = 0;
  size_t bytes = 0;
  return lt().algo_get(&result.algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, &bytes) ==
             CUBLAS_STATUS_SUCCESS &&
         tile == wanted;
}

// A scale for each row of a and each column of b. False where the headers are older than these.
bool set_scales(cublasLtMatmulDesc_t desc, const Cublas::CodeScales& scales) {
#if CUBLAS_VERSION >= 120900
  const auto try_set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    return lt().desc_set(desc, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
  };
  constexpr int32_t kMode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  return try_set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, kMode) && try_set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, kMode) &&
         try_set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.w) &&
         try_set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.x);
#else
  return false;
#endif
}

}  // namespace

// One product: c^T = b^T a^T by columns, so that our b is cuBLASLt's first operand.
struct Cublas::Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, start = nullptr, result = nullptr;
  cublasLtMatmulHeuristicResult_t chosen{};
  bool found = false;

  ~Plan() {
    if (desc) lt().desc_destroy(desc);
    for (cublasLtMatrixLayout_t layout : {first, second, start, result})
      if (layout) lt().layout_destroy(layout);
  }
};

Cublas::Cublas(cudaStream_t stream, int capability)
    : stream_(stream), capability_(capability), workspace_bytes_(size_t{capability >= 90 ? 32u : 8u} << 20) {
  cublasLtHandle_t handle;
  lt_check(lt().create(&handle), "its start");
  handle_ = handle;
}

Cublas::~Cublas() {
  plans_.clear();
  cudaFree(workspace_);
  lt().destroy(static_cast<cublasLtHandle_t>(handle_));
}

void Cublas::open_early() {
  // The loader thread must be joined before static destructors run. thread_local objects of the main thread are
  // destroyed first, so the jthread is one.
  thread_local const std::jthread opening([] {
    try {
      lt();
    } catch (const Error&) {  // the first caller that needs it gets the error
    }
  });
}

void Cublas::warm_up(int capability) {
  void* const nowhere = reinterpret_cast<void*>(uintptr_t{256});  // nothing runs
  constexpr int64_t kSide = 1024;
  const DeviceMatrix m{nowhere, DType::bf16, kSide, kSide, kSide};
  const GemmBatch one;
  (void)Cublas(nullptr, capability).make_plan({m, m, m.t(), m, 1, 0, nullptr, one});
}

std::string Cublas::describe() {
  try {
    const size_t v = lt().version();
    return fmt::format("cuBLASLt {}.{}.{}", v / 10000, v / 100 % 100, v % 100);
  } catch (const Error& e) {
    return e.what();
  }
}

std::unique_ptr<Cublas::Plan> Cublas::make_plan(const Product& p) const {
  const auto& [d, a, b, c, alpha, beta, bias, batch, scales] = p;
  auto plan = std::make_unique<Plan>();
  const bool tf32 = tf32_ && a.dtype == DType::f32;
  lt_check(lt().desc_create(&plan->desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
           "describing a product");
  set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (bias) {
    set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);  // its alignment counts
  }
  if (a.dtype == DType::fp8 && bias) set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(d.dtype));
  if (scales.x && !set_scales(plan->desc, scales)) return plan;
  plan->first = layout_of(b, batch.count, batch.b);
  plan->second = layout_of(a, batch.count, batch.a);
  plan->start = layout_of(c, batch.count, batch.c);
  plan->result = layout_of(d, batch.count, batch.c);

  cublasLtMatmulPreference_t preference;
  lt_check(lt().preference_create(&preference), "asking for an algorithm");
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, cublasStatus_t (*)(cublasLtMatmulPreference_t)> owner(
      preference, lt().preference_destroy);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes_);
  // Partial sums of a split reduction stay f32, and are added in a fixed order.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(b, batch.b));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(a, batch.a));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(c, batch.c));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(d, batch.c));
  const Measured* const better = capability_ == 90 && batch.count == 1 ? measured(a, b, beta != 0) : nullptr;
  cublasLtMatmulHeuristicResult_t results[kResults];
  int count = 0;
  const cublasStatus_t status =
      lt().heuristic(static_cast<cublasLtHandle_t>(handle_), plan->desc, plan->first, plan->second, plan->start,
                     plan->result, preference, better ? kResults : 1, results, &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) return plan;
  const auto wanted = [&](const auto& result) {
    return result.state == CUBLAS_STATUS_SUCCESS && has_tile(result, better->tile);
  };
  const auto end = results + count, chosen = better ? std::find_if(results, end, wanted) : results;
  plan->chosen = chosen == end ? results[0] : *chosen;
  plan->found = plan->chosen.state == CUBLAS_STATUS_SUCCESS;
  return plan;
}

bool Cublas::run(const Product& p) {
  const auto& [d, a, b, c, alpha, beta, bias, batch, scales] = p;
  check(a.dtype == b.dtype && (d.dtype == a.dtype || d.dtype == DType::f32 || a.dtype == DType::fp8) && !d.transposed,
        "cuBLASLt: no product of {} and {} into {}", name_of(a.dtype), name_of(b.dtype), name_of(d.dtype));
  const uint64_t aligned = uint64_t{alignment(c, batch.c)} << 40 | uint64_t{alignment(a, batch.a)} << 30 |
                           uint64_t{alignment(b, batch.b)} << 20 | uint64_t{alignment(d, batch.c)} << 10 |
                           alignment(bias);
  const Key key{a.dtype,
                d.dtype,
                d.rows,
                d.cols,
                a.cols,
                d.ld,
                c.ld,
                a.ld,
                b.ld,
                a.transposed,
                b.transposed,
                batch.count,
                batch.c,
                batch.a,
                batch.b,
                aligned,
                bias != nullptr,
                beta != 0,
                tf32_,
                scales.x != nullptr};
  std::unique_ptr<Plan>& plan = plans_[key];
  if (!plan) plan = make_plan(p);
  if (!plan->found) return false;
  if (!workspace_) cuda_check(cudaMalloc(&workspace_, workspace_bytes_), "the workspace of cuBLASLt");
  if (bias) set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (scales.x) set_scales(plan->desc, scales);
  lt_check(lt().matmul(static_cast<cublasLtHandle_t>(handle_), plan->desc, &alpha, b.data, plan->first, a.data,
                       plan->second, &beta, c.data, plan->start, d.data, plan->result, &plan->chosen.algo, workspace_,
                       plan->chosen.workspaceSize,  // given more, it clears what some kernels never use: 3 us
                       stream_),
           "a product");
  return true;
}

void Cublas::gemm(const DeviceMatrix& c, const DeviceMatrix& a, const DeviceMatrix& b, float alpha, float beta,
                  const GemmBatch& batch) {
  if (c.transposed) return gemm(c.t(), b.t(), a.t(), alpha, beta, {batch.count, batch.c, batch.b, batch.a});
  check(run({c, a, b, c, alpha, beta, nullptr, batch}), "cuBLASLt: no algorithm for {} x {} x {} in {} (batch {})",
        c.rows, c.cols, a.cols, name_of(a.dtype), batch.count);
}

bool Cublas::multiply_codes(const DeviceMatrix& y, const DeviceMatrix& x, const DeviceMatrix& w,
                            const CodeScales& scales, const void* bias, const DeviceMatrix& residual, float factor) {
  const DeviceMatrix columns = w.t();
  const GemmBatch one;
  const DeviceMatrix& start = residual.data ? residual : y;
  return run({y, x, columns, start, factor, residual.data ? 1.0f : 0.0f, bias, one, scales});
}

bool Cublas::linear(const DeviceMatrix& y, const DeviceMatrix& x, const DeviceMatrix& w, const void* bias,
                    const DeviceMatrix& residual) {
  if (y.transposed || residual.transposed || (residual.data && residual.dtype != y.dtype)) return false;
  return residual.data ? run({y, x, w, residual, 1, 1, bias, {}}) : run({y, x, w, y, 1, 0, bias, {}});
}

}  // namespace wick
