#include "wick/backend/cuda/runtime/tensor_map.h"

namespace wick {

decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &status),
               "finding cuTensorMapEncodeTiled");
#else
    cuda_check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &status),
               "finding cuTensorMapEncodeTiled");
#endif
    check(function != nullptr, "CUDA: the driver has no cuTensorMapEncodeTiled; a newer driver helps");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return found;
}

CUtensorMap tensor_map(const DeviceMatrix& m, int rows, int cols) {
  const int64_t m_rows = m.transposed ? m.cols : m.rows, m_cols = m.transposed ? m.rows : m.cols;
  const cuuint64_t extent[2] = {cuuint64_t(m_cols), cuuint64_t(m_rows)}, pitch[1] = {cuuint64_t(m.ld) * 2};
  const cuuint32_t box[2] = {cuuint32_t(cols), cuuint32_t(rows)}, step[2] = {1, 1};
  const auto type = m.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const auto swizzle = cols == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                       : cols == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                    : CU_TENSOR_MAP_SWIZZLE_32B;
  CUtensorMap map;
  const CUresult status =
      tensor_map_encoder()(&map, type, 2, m.data, extent, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(status == CUDA_SUCCESS, "CUDA: no tensor map for {} x {} of {} with rows of {} (error {})", m_rows, m_cols,
        name_of(m.dtype), m.ld, int(status));
  return map;
}

}  // namespace wick
