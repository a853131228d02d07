// The ops at the shapes of SDXL's UNet at half width on a latent of 32 x 32, where its time goes.
#include "time_op.h"

namespace wick::bench {
namespace {

const bool registered = [] {
  const Conv2d same{.stride = 1, .top = 1, .left = 1, .bottom = 1, .right = 1};
  for (const auto& [side, channels] : {std::pair<int64_t, int64_t>{32, 160}, {16, 320}, {8, 640}}) {
    const int64_t tokens = side * side;
    const std::string at = fmt::format("/{}x{}x{}", side, side, channels);
    add_op(
        "conv2d" + at, {{1, side, side, channels}, {channels, 3, 3, channels}}, {true, false},
        [=](const auto& x) { return conv2d(x[0], x[1], {}, same); }, 2.0 * 9 * double(tokens * channels * channels));
    add_op("group_norm_silu" + at, {{1, side, side, channels}, {channels}, {channels}}, {true, false, false},
           [](const auto& x) { return group_norm(x[0], x[1], x[2], 32, 1e-5f, true); });
    if (side == 32) continue;  // no transformer there
    add_op("layer_norm" + at, {{1, tokens, channels}, {channels}, {channels}}, {true, false, false},
           [](const auto& x) { return layer_norm(x[0], x[1], x[2], 1e-5f); });
    add_op(
        "linear" + at, {{1, tokens, channels}, {channels, channels}}, {true, false},
        [](const auto& x) { return linear(x[0], x[1]); }, 2.0 * double(tokens * channels * channels));
    add_op(
        "lora_linear_r32" + at, {{1, tokens, channels}, {channels, channels}, {32, channels}, {channels, 32}},
        {true, false, true, true}, [](const auto& x) { return lora_linear(x[0], x[1], {}, x[2], x[3], 1.0f); },
        2.0 * double(tokens * channels * (channels + 64)));
    add_op("geglu" + at, {{1, tokens, 8 * channels}}, {true}, [](const auto& x) { return geglu(x[0]); });
    const Shape q{1, tokens, channels / 64, 64}, text{1, 77, channels / 64, 64};
    const auto attend = [](const auto& x) { return attention(x[0], x[1], x[2]); };
    add_op("self_attention" + at, {q, q, q}, {true, true, true}, attend, 4.0 * double(tokens * tokens * channels));
    add_op("cross_attention" + at, {q, text, text}, {true, true, true}, attend, 4.0 * double(tokens * 77 * channels));
  }
  return true;
}();

}  // namespace
}  // namespace wick::bench
