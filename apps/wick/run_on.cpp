#include "run_on.h"

namespace wick::cli {

void RunOn::add_flags(CLI::App& command) {
  const auto known = [](const std::string& device) {
    return is_device_name(device) ? "" : "expected auto, cpu, cuda or cuda:N, found '" + device + "'";
  };
  command.add_option("--device", device_, "auto (default), cpu, cuda or cuda:N; auto is CUDA where there is a device")
      ->type_name("DEVICE")
      ->check(CLI::Validator([=](std::string& device) -> std::string { return known(device); }, ""));
  CLI::Option* bf16 = command.add_flag("--bf16", bf16_, "Weights in bfloat16, and on a device all arithmetic on them");
  command.add_flag("--fp16", fp16_, "Likewise in float16")->excludes(bf16);
  command.add_flag("--tf32", tf32_, "Lets a GPU round the factors of f32 products to 10 bits, which is faster");
}

}  // namespace wick::cli
