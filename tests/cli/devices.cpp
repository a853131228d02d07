// --device and `wick doctor` without a GPU, or without a fitting module. scripts/gpu-check has the tests on a GPU.
#include "cli/program.h"

namespace wick {
namespace {

const std::string kNoGpu = "CUDA_VISIBLE_DEVICES=";  // hides existing ones

std::string train_on(const std::string& device, const TemporaryDirectory& folder) {
  const std::string data = (test::source_dir() / "data/tiny-style").string();
  return "train --model tiny --dataset '" + data + "' --output '" + (folder / "out").string() +
         "' --steps 1 --device " + device;
}

// Asking for CUDA is one line that says `why`; `doctor` says it too, and that the CPU serves; nothing is written.
void expect_no_cuda(const std::string& prefix, const std::string& why) {
  const TemporaryDirectory folder;
  expect_one_line(run_wick(train_on("cuda", folder), prefix), {"--device cuda", why, "wick doctor", "--device cpu"});
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  const Outcome doctor = run_wick("doctor", prefix);
  EXPECT_EQ(doctor.code, 0);
  EXPECT_EQ(doctor.err, "");
  for (const std::string& words : {std::string("not used: "), why, std::string("auto takes cpu")})
    EXPECT_NE(doctor.out.find(words), std::string::npos) << "expected '" << words << "' in:\n" << doctor.out;
}

bool has_module() {
  const std::string path = run_wick("doctor", kNoGpu).out;
  return path.find("has no CUDA module") == std::string::npos;
}
bool built_in() { return run_wick("doctor", kNoGpu).out.find("cuda module  built in") != std::string::npos; }

TEST(Devices, WithoutAGpu) { expect_no_cuda(kNoGpu, has_module() ? "NVIDIA" : "no CUDA module"); }

TEST(Devices, AModuleThatIsNotThere) {
  if (built_in()) GTEST_SKIP() << "no module is opened";
  expect_no_cuda("WICK_CUDA_MODULE=/nowhere/libwick-cuda.so", "/nowhere/libwick-cuda.so is not there");
}

TEST(Devices, AModuleThatIsNoLibrary) {
  if (built_in()) GTEST_SKIP() << "no module is opened";
  expect_no_cuda("WICK_CUDA_MODULE='" + (test::source_dir() / "README.md").string() + "'", "could not be opened");
}

TEST(Devices, AModuleOfAnotherBuild) {
  if (built_in()) GTEST_SKIP() << "no module is opened";
  expect_no_cuda("WICK_CUDA_MODULE='" WICK_OTHER_MODULE "'", "belongs to another build of wick");
}

// A user need not know the variables; those that are set take effect.
TEST(Devices, ThreadsWaitBrieflyUnlessToldOtherwise) {
  const std::string unset = "unset OMP_WAIT_POLICY GOMP_SPINCOUNT; ";
  const auto waits_by = [&](const std::string& prefix) { return run_wick("doctor", unset + prefix + kNoGpu).out; };
  EXPECT_NE(waits_by("").find("wait by GOMP_SPINCOUNT=10000\n"), std::string::npos);
  EXPECT_NE(waits_by("OMP_WAIT_POLICY=active ").find("wait by OMP_WAIT_POLICY=active\n"), std::string::npos);
  EXPECT_NE(waits_by("GOMP_SPINCOUNT=7 ").find("wait by GOMP_SPINCOUNT=7\n"), std::string::npos);
}

TEST(Devices, NamesThatAreNone) {
  const TemporaryDirectory folder;
  for (const std::string name : {"gpu", "cuda:", "cuda:-1", "cuda:x", "CUDA"})
    expect_one_line(run_wick(train_on(name, folder), kNoGpu), {"--device", "auto, cpu, cuda or cuda:N", name});
}

}  // namespace
}  // namespace wick
