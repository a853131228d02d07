#include "wick/backend/cuda/attention/heads_map.h"

#include "wick/backend/cuda/runtime/check.h"
#include "wick/backend/cuda/runtime/tensor_map.h"

namespace wick {
CUtensorMap heads_map(const View& v) {
  constexpr int kAxes[4] = {3, 1, 2, 0};
  cuuint64_t extent[4], pitch[3];
  for (int i = 0; i < 4; ++i) {
    extent[i] = cuuint64_t(v.shape[kAxes[i]]);
    if (i > 0) pitch[i - 1] = v.shape[kAxes[i]] == 1 ? 16 : cuuint64_t(v.stride[kAxes[i]]) * 2;
  }
  const cuuint32_t box[4] = {64, kHeadsBox, 1, 1}, step[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult status = tensor_map_encoder()(
      &map, v.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, v.data,
      extent, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(status == CUDA_SUCCESS, "CUDA: no tensor map for heads {} of {} (error {})", to_string(v.shape),
        name_of(v.dtype), int(status));
  return map;
}

}  // namespace wick
