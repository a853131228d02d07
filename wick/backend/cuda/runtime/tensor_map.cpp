#include "wick/backend/cuda/runtime/tensor_map.h"

#include "wick/backend/cuda/runtime/driver.h"

namespace wick {

namespace {

decltype(&cuTensorMapEncodeTiled) encoder() {
  static const auto found = driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  return found;
}

// The box is one of 16-bit elements, swizzled by the bytes of its rows.
template <int kDims>
CUtensorMap encode(const View& v, const cuuint64_t (&extent)[kDims], const cuuint64_t (&pitch)[kDims - 1],
                   const cuuint32_t (&box)[kDims]) {
  const auto type = v.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const auto swizzle = box[0] == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                       : box[0] == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                      : CU_TENSOR_MAP_SWIZZLE_32B;
  const cuuint32_t step[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult status = encoder()(&map, type, kDims, v.data, extent, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                    swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(status == CUDA_SUCCESS, "CUDA: no tensor map for {} of {} with strides {} (error {})", v.shape,
        name_of(v.dtype), v.stride, int(status));
  return map;
}

}  // namespace

CUtensorMap tensor_map(const DeviceMatrix& m, int rows, int cols) {
  const View v = (m.transposed ? m.t() : m).view();
  return encode<2>(v, {cuuint64_t(v.shape[1]), cuuint64_t(v.shape[0])}, {cuuint64_t(m.ld) * 2},
                   {cuuint32_t(cols), cuuint32_t(rows)});
}

CUtensorMap heads_map(const View& v) {
  constexpr int kAxes[4] = {3, 1, 2, 0};
  cuuint64_t extent[4], pitch[3];
  for (int i = 0; i < 4; ++i) {
    extent[i] = cuuint64_t(v.shape[kAxes[i]]);
    if (i > 0) pitch[i - 1] = v.shape[kAxes[i]] == 1 ? 16 : cuuint64_t(v.stride[kAxes[i]]) * 2;
  }
  return encode<4>(v, extent, pitch, {64, kHeadsBox, 1, 1});
}

}  // namespace wick
