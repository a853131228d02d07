// The scripts that set Wick up, where PyPI cannot be reached. Nothing is installed or built: the programs that would do
// it are stand-ins.
#include <cstdlib>

#include "cli/program.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class Scripts : public testing::Test {
 protected:
  Scripts() {
    fs::create_directories(folder_ / "scripts");
    for (const char* name : {"demo", "setup", "setup-tokenizers"})
      fs::copy(test::source_dir() / "scripts" / name, folder_ / "scripts" / name);
    fs::create_directories(folder_ / "bin");
    program("bin/dpkg-query", "echo installed");
    program("bin/nvidia-smi", "exit 1");
    program("scripts/build", "exit 0");
    program("build/release/bin/wick", "echo \"wick $1\"");
  }

  void program(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    write_plain(folder_ / name, "#!/bin/sh\n" + text + "\n");
    fs::permissions(folder_ / name, fs::perms::owner_all);
  }

  // Nothing listens at port 9 of this machine.
  Outcome run(const std::string& script) {
    const std::string command = "cd '" + folder_.path().string() + "' && PATH=\"$PWD/bin:$PATH\" " +
                                "PIP_INDEX_URL=http://127.0.0.1:9/simple PIP_EXTRA_INDEX_URL= PIP_NO_INDEX= scripts/" +
                                script;
    const int status = std::system(
        ("( " + command + " ) >'" + (folder_ / "out").string() + "' 2>'" + (folder_ / "err").string() + "'").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_plain(folder_ / "out"), read_plain(folder_ / "err")};
  }

  TemporaryDirectory folder_;
};

// The models of the demo have tokenizers of their own.
TEST_F(Scripts, TheDemoDoesNotAskPyPI) {
  program("bin/python3", "echo asked >&2; exit 1");
  for (const char* which : {"demo", "demo flux", "demo sd3", "demo llm"}) {
    const Outcome outcome = run(which);
    EXPECT_EQ(outcome.code, 0) << which << outcome.err;
    EXPECT_EQ(outcome.err, "") << which;
    EXPECT_NE(outcome.out.find("wick train"), std::string::npos) << outcome.out;
  }
}

TEST_F(Scripts, TokenizersThatCannotBeHadAreOneLine) {
  const Outcome alone = run("setup-tokenizers");
  EXPECT_EQ(alone.code, 1);
  expect_one_line(alone, {"scripts/setup-tokenizers: pip cannot get diffsynth=="});
  EXPECT_TRUE(fs::is_empty(folder_ / "build/share/wick")) << "nothing is left";
}

TEST_F(Scripts, SetUpGoesOnWithoutTokenizers) {
  program("scripts/setup-tokenizers", "echo 'scripts/setup-tokenizers: none' >&2; exit 1");
  const Outcome outcome = run("setup");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("scripts/setup: going on without tokenizers, which "), std::string::npos) << outcome.err;
  EXPECT_EQ(run("setup ci").code, 1);
}

}  // namespace
}  // namespace wick
