#include "run_on.h"

namespace wick::cli {

void RunOn::add_flags(CLI::App& command) {
  const auto known = [](const std::string& device) {
    return is_device_name(device) ? "" : "expected auto, cpu, cuda or cuda:N, found '" + device + "'";
  };
  const std::string group = "Device and precision";
  command
      .add_option("--device", device_, "auto, cpu, cuda or cuda:N; auto is the first CUDA device, or the CPU [auto]")
      ->type_name("DEVICE")
      ->check(CLI::Validator([=](std::string& device) -> std::string { return known(device); }, ""))
      ->group(group);
  CLI::Option* bf16 = command.add_flag("--bf16", bf16_, "Weights in bf16, and on a device all arithmetic on them");
  bf16->group(group);
  command.add_flag("--fp16", fp16_, "Likewise in fp16")->excludes(bf16)->group(group);
  command.add_flag("--tf32", tf32_, "Lets a GPU round the factors of f32 products to 10 bits, which is faster")
      ->group(group);
}

}  // namespace wick::cli
