// The scripts of `wick completions`, read by the shells themselves where those are installed.
#include <fstream>

#include "apps/wick/completion_scripts.h"
#include "apps/wick/flag_table.h"
#include "cli/program.h"
#include "cli/whole_program.h"

namespace wick {
namespace {

class Completions : public testing::Test {
 protected:
  std::filesystem::path script(const std::string& shell) {
    const Outcome outcome = run_wick("completions " + shell);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    write_plain(folder / shell, outcome.out);
    return folder / shell;
  }
  // The output of `commands` in a shell whose folder is this one; none where there is no such shell.
  std::optional<std::string> said(const std::string& shell, const std::string& commands) {
    if (std::system(("command -v " + shell + " >/dev/null").c_str()) != 0) return {};
    write_plain(folder / "commands", "cd '" + folder.path().string() + "'\n" + commands);
    const std::string out = (folder / "said").string();
    const std::string line = shell + " '" + (folder / "commands").string() + "' >'" + out + "' 2>&1";
    EXPECT_EQ(std::system(line.c_str()), 0) << line << read_plain(out);
    return read_plain(out);
  }
  const TemporaryDirectory folder;
};

class BashCompletions : public Completions {
 protected:
  // The offers for the last of these words, which are as bash has cut the line.
  std::string offers(const std::string& words) {
    return *said("bash", "source '" + script("bash").string() + "'\nCOMP_WORDS=(wick " + words +
                             ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_wick\necho \"${COMPREPLY[*]}\"\n");
  }
};

TEST_F(BashCompletions, OfCommandsAndFlags) {
  EXPECT_EQ(offers("tr"), "train\n");
  EXPECT_EQ(offers("train"), "train\n");
  EXPECT_TRUE(offers("''").starts_with("train plan generate "));
  EXPECT_EQ(offers("--v"), "--version\n");
  EXPECT_EQ(offers("help c"), "chat convert completions\n");
  EXPECT_EQ(offers("manual tr"), "train\n");
  EXPECT_EQ(offers("train --see"), "--seed\n");
  EXPECT_EQ(offers("train --network-d"), "--network-dim --network-dropout\n") << "other names of flags";
  EXPECT_EQ(offers("chat --no"), "--no-thinking\n");
  EXPECT_EQ(offers("doctor ''"), "-h --help -V --version\n");
  EXPECT_TRUE(offers("train --bf16 ''").starts_with("--config ")) << "behind a switch";
  EXPECT_EQ(offers("nonsense ''"), "\n");
}

TEST_F(BashCompletions, OfValues) {
  EXPECT_EQ(offers("chat --on-full ''"), "error forget\n");
  EXPECT_EQ(offers("chat --on_full = f"), "forget\n");
  EXPECT_EQ(offers("chat --on-full ="), "error forget\n");
  EXPECT_EQ(offers("train --learning-rate 1 ''"), "\n") << "a number";
  EXPECT_EQ(offers("chat --device c"), "cpu cuda\n");
  EXPECT_EQ(offers("chat --model tiny-l"), "tiny-llm\n");
  EXPECT_EQ(offers("completions ''"), "bash zsh fish\n");
}

TEST_F(BashCompletions, OfFilesAndFolders) {
  std::filesystem::create_directory(folder / "some pictures");
  write_plain(folder / "some.safetensors", "");
  for (const char* path : {"some.safetensors", "some pictures"})
    EXPECT_NE(offers("chat --model so").find(path), std::string::npos) << path;
  EXPECT_EQ(offers("train --output so"), "some pictures\n");
  EXPECT_EQ(offers("train --cache ''"), "none some pictures\n");
  EXPECT_EQ(offers("inspect --tensors some."), "some.safetensors\n");
  EXPECT_EQ(offers("train --dataset a b some."), "some.safetensors\n") << "of several behind one flag";
}

TEST_F(Completions, FishReadsThem) {
  write_plain(folder / "some.safetensors", "");
  const auto offers = [&](const std::string& line) {
    return said("fish", "source " + script("fish").string() + "\ncomplete -C '" + line + "'\n");
  };
  if (!offers("wick ")) GTEST_SKIP() << "no fish is installed";
  EXPECT_TRUE(offers("wick tr")->starts_with("train\tTrain "));
  EXPECT_EQ(*offers("wick train --see"), "--seed\tSeed of all random numbers\n");
  EXPECT_TRUE(offers("wick train --network-dim")->starts_with("--network-dim\tRank "));
  EXPECT_TRUE(offers("wick chat --on-full f")->starts_with("forget\t"));
  EXPECT_EQ(*offers("wick inspect some"), "some.safetensors\n");
  EXPECT_EQ(*offers("wick train --steps "), "");
}

TEST_F(Completions, ZshReadsThem) {
  // Without its functions for completion: they are called, with what they are to offer, where a line is completed.
  const auto calls = [&](const std::string& words) {
    return said("zsh",
                "compdef() { :; }\n_arguments() { print -l -- $@; }\n_describe() { print -l -- $commands; }\n"
                "source " +
                    script("zsh").string() + "\nwords=(wick " + words + ")\nCURRENT=$#words\n_wick\n");
  };
  if (!calls("''")) GTEST_SKIP() << "no zsh is installed";
  EXPECT_NE(calls("tr")->find("train:Train a LoRA"), std::string::npos);
  EXPECT_NE(calls("chat --on-full ''")->find("]:error|forget:(error forget)\n"), std::string::npos);
  EXPECT_NE(calls("train ''")->find("*--seed[Seed of all random numbers]:INT: \n"), std::string::npos);
  EXPECT_NE(calls("train ''")->find("*--dataset[Folder"), std::string::npos);
  EXPECT_NE(calls("eval ''")->find("]:*-*:FILE ...: _wick_files"), std::string::npos);
  EXPECT_EQ(calls("inspect ''")->substr(0, 20), ":FILE: _wick_files \n");
}

TEST_F(Completions, EveryShellKnowsEveryFlag) {
  const WholeProgram program;
  const std::string bash = cli::bash_completions(program.app), zsh = cli::zsh_completions(program.app),
                    fish = cli::fish_completions(program.app);
  for (const CLI::App* command : program.app.get_subcommands({}))
    for (const cli::FlagRow& row : cli::flag_table(*command))
      for (const std::string& name : row.names) {
        EXPECT_NE(bash.find(name), std::string::npos) << name;
        EXPECT_NE(zsh.find("'*" + name + "["), std::string::npos) << name;
        EXPECT_NE(fish.find(" -l " + name.substr(2) + " "), std::string::npos) << name;
      }
}

TEST_F(Completions, WrongShellsAreOneLine) {
  expect_one_line(run_wick("completions"), {"shell", "required"});
  const Outcome other = run_wick("completions tcsh");
  expect_one_line(other, {"bash, zsh, fish", "'tcsh'"});
  EXPECT_EQ(other.code, 2);
}

}  // namespace
}  // namespace wick
