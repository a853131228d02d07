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

// More threads than CPUs help nobody: the CPUs, the affinity mask and the quota are the most.
TEST(Devices, ThreadsAreNoMoreThanTheCpus) {
  const std::string unset = "unset OMP_NUM_THREADS WICK_THREADS; ";
  const auto threads = [&](const std::string& prefix) { return run_wick("doctor", unset + kNoGpu + " " + prefix).out; };
  EXPECT_NE(threads("taskset -c 0 ").find("cpu          1 thread\n"), std::string::npos) << threads("taskset -c 0 ");
  EXPECT_NE(threads("WICK_THREADS=1 ").find("cpu          1 thread\n"), std::string::npos);
  EXPECT_NE(threads("OMP_NUM_THREADS=1 ").find("cpu          1 thread\n"), std::string::npos);
  EXPECT_NE(threads("WICK_THREADS=1 OMP_NUM_THREADS=2 ").find("cpu          1 thread\n"), std::string::npos);
  EXPECT_EQ(threads("OMP_NUM_THREADS=100000 "), threads(""));
  EXPECT_EQ(threads("OMP_NUM_THREADS=1000 "), threads(""));
}

// The module here tells of four devices.
const std::string kFour = "WICK_CUDA_MODULE='" WICK_DEVICES_MODULE "' ";

TEST(Devices, LinksAreTold) {
  if (built_in()) GTEST_SKIP() << "no module is opened";
  const std::string mixed = run_wick("doctor", kFour).out;
  for (const char* line :
       {"link         cuda:0 and cuda:1, cuda:2 and cuda:3: NVLink (4 links), peer access\n",
        "link         cuda:0 and cuda:2, cuda:0 and cuda:3, cuda:1 and cuda:2, cuda:1 and cuda:3: PCIe, peer access\n"})
    EXPECT_NE(mixed.find(line), std::string::npos) << mixed;
  const std::string alike = run_wick("doctor", "WICK_TEST_LINKS=alike " + kFour).out;
  EXPECT_NE(alike.find("link         any two of cuda:0 to cuda:3: NVLink (4 links), peer access\n"), std::string::npos)
      << alike;
  EXPECT_EQ(run_wick("doctor", kNoGpu).out.find("link  "), std::string::npos);
}

// The row shows the launcher's place for this process, or the fault in its variables; without a launcher there is none.
TEST(Devices, ThePlaceAmongRanksIsTold) {
  const auto rank = [](const std::string& variables) {
    const Outcome doctor = run_wick("doctor", variables + " " + kNoGpu);
    EXPECT_EQ(doctor.code, 0);
    const size_t begin = doctor.out.find("\nrank ");
    return begin == std::string::npos ? "" : doctor.out.substr(begin + 1, doctor.out.find('\n', begin + 1) - begin - 1);
  };
  EXPECT_EQ(rank(""), "");
  EXPECT_EQ(rank("RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=node-a MASTER_PORT=4000"),
            "rank         1 of 4, number 1 on this machine; rank 0 is at node-a:4001");
  EXPECT_EQ(rank("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 WICK_ID_FILE=/shared/id"),
            "rank         0 of 2, number 0 on this machine; rank 0 is at the place that /shared/id tells");
  EXPECT_EQ(rank("RANK=4 WORLD_SIZE=4 LOCAL_RANK=0"),
            "rank         RANK: expected a number from 0 to 3 (WORLD_SIZE is 4), found \"4\"");
}

std::string planned(const std::string& flags, const std::string& prefix = kNoGpu) {
  const Outcome plan = run_wick("plan --model '" + kModel + "' --rank 8 --batch-size 2 " + flags, prefix);
  EXPECT_EQ(plan.code, 0) << plan.err;
  return plan.out;
}

// The planned devices may be those of another machine.
TEST(Devices, SeveralArePlanned) {
  const std::string one = planned("--gpus 1"), four = planned("--gpus 4 --accumulate 2");
  EXPECT_EQ(one, planned("--device cuda"));
  for (const char* words : {"on each of cuda:0, cuda:1, cuda:2, cuda:3\n", "\n  collectives ",
                            "; no such devices here\n", "\n4 devices x 2 x accumulate 2 = 16 pictures a step\n"})
    EXPECT_NE(four.find(words), std::string::npos) << words << " in\n" << four;
  EXPECT_NE(planned("--gpus 0,2").find("each of cuda:0, cuda:2\n"), std::string::npos);
  const std::string streamed = planned("--gpus 2 --bf16 --stream-blocks all");
  EXPECT_NE(streamed.find("streamed, page-locked; once for all devices\n"), std::string::npos) << streamed;
  const std::string both =
      planned("--gpus 2 --bf16 --stream-blocks all --gradient-checkpointing --checkpoints-on-host");
  EXPECT_NE(both.find(" of them for each device\n"), std::string::npos) << both;
  EXPECT_NE(planned("--gpus 2 --memory 12GiB").find("12.0 GiB, on each of cuda:0, cuda:1: "), std::string::npos);
  EXPECT_NE(planned("--gpus 2 --train full").find("of rank 0 while it saves"), std::string::npos);
  const std::string text = run_wick("plan --model tiny-llm --gpus 3", kNoGpu).out;
  EXPECT_NE(text.find("\n3 devices x 1 x accumulate 1 = 3 rows a step\n"), std::string::npos) << text;
}

// The plan compares with the device that has the least free memory.
TEST(Devices, SeveralThatAreHereArePlanned) {
  if (built_in()) GTEST_SKIP() << "no module is opened";
  EXPECT_NE(planned("--gpus all", kFour).find("; 40.0 GiB are free\n"), std::string::npos);
  EXPECT_NE(planned("--gpus 2", kFour).find("; 70.0 GiB are free\n"), std::string::npos);
  EXPECT_NE(planned("--gpus 1,2 --memory auto", kFour).find("40.0 GiB, on each of cuda:1, cuda:2: "),
            std::string::npos);
  const TemporaryDirectory folder;
  expect_one_line(run_wick(train_on("cuda --gpus 5", folder), kFour), {"--gpus 5", "there are 4 CUDA devices"});
  expect_one_line(run_wick(train_on("cuda --gpus 1,4", folder), kFour), {"--gpus 1,4", "there are 4 CUDA devices"});
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(Devices, NumbersOfDevicesThatAreNone) {
  const TemporaryDirectory folder;
  for (const std::string gpus : {"0", "-1", "x", "1.5", "2,", ",1", "1,,2", "1 2", "0,0", "1025", "4294967296", "All"})
    for (const std::string& command :
         {"plan --model '" + kModel + "' --gpus '" + gpus + "'", train_on("auto --gpus '" + gpus + "'", folder)}) {
      const Outcome outcome = run_wick(command, kNoGpu);
      expect_one_line(outcome, {"--gpus"});
      EXPECT_EQ(outcome.code, 2) << command;
    }
  expect_one_line(run_wick("plan --model '" + kModel + "' --gpus all", kNoGpu), {"--gpus: ", "wick doctor"});
  expect_one_line(run_wick(train_on("cpu --gpus 2", folder), kNoGpu), {"--gpus 2 and --device cpu"});
}

TEST(Devices, NamesThatAreNone) {
  const TemporaryDirectory folder;
  for (const std::string name : {"gpu", "cuda:", "cuda:-1", "cuda:x", "CUDA"})
    expect_one_line(run_wick(train_on(name, folder), kNoGpu), {"--device", "auto, cpu, cuda or cuda:N", name});
}

}  // namespace
}  // namespace wick
