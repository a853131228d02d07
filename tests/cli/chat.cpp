// `wick chat` with the language model that ships with Wick: at a terminal, and line by line.
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/program.h"
#include "cli/terminal.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const std::string kChatWarm = "chat --model tiny-llm --device cpu ", kChat = kChatWarm + "--temperature 0 ";
const std::string kCow = "What does a cow say?", kMoo = "A cow says moo.";
constexpr const char *kUp = "\x1b[A", *kLeft = "\x1b[D", *kBack = "\x7f", *kInterrupt = "\x03", *kEnd = "\x04",
                     *kSuspend = "\x1a";

class ChatTerminal : public testing::Test {
 protected:
  std::string variables() const { return "XDG_STATE_HOME='" + folder.path().string() + "' LC_ALL=C.UTF-8"; }
  std::string history() const { return read_plain(folder / "wick/chat_history"); }
  std::string end(Terminal& terminal, const char* keys = kEnd) {
    terminal.await_prompt();
    terminal.type(keys);
    EXPECT_EQ(terminal.code(), 0) << terminal.shown();
    return terminal.shown();
  }
  const TemporaryDirectory folder;
};

TEST_F(ChatTerminal, EditsLinesAndBringsThemBack) {
  const std::string saved = (folder / "chat.jsonl").string();
  Terminal terminal(kChat, variables());
  terminal.await("/help lists commands");
  terminal.await_prompt();
  terminal.type("What does a dog" + std::string(3, *kBack) + "cow say?\n");
  terminal.await(kMoo);
  terminal.await_prompt();
  terminal.type("no messag");
  terminal.await("no messag");
  terminal.type(kInterrupt);  // clears the line
  terminal.await_prompt();
  terminal.type(kUp);
  terminal.await(kCow);
  terminal.type("\n");
  terminal.await(kMoo);
  terminal.await_prompt();
  terminal.type("/save " + saved + "\n");
  terminal.await("Wrote 4 messages to " + saved);
  terminal.await_prompt();
  terminal.type("/exit\n");
  EXPECT_EQ(terminal.code(), 0);
  EXPECT_EQ(history(), kCow + "\n/save " + saved + "\n/exit\n") << "a line that is repeated stands there once";
  struct stat status {};
  ASSERT_EQ(stat((folder / "wick/chat_history").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);

  Terminal next(kChat, variables());
  next.await_prompt();
  next.type(std::string(kUp) + kUp + kUp);
  next.await(kCow);
  next.type("\n");
  next.await(kMoo);
  end(next);
}

TEST_F(ChatTerminal, CharactersAreOfMoreThanAByte) {
  for (const char* locale : {"C.UTF-8", "C"}) {
    fs::remove_all(folder / "wick");
    Terminal terminal(kChat, variables() + " LC_ALL=" + locale);
    terminal.await_prompt();
    terminal.type("Grö\u00dfe \u4f60\u597d" + std::string(3, *kBack) + kLeft + kBack + "\u00e4\n");
    terminal.await("\n");
    end(terminal);
    EXPECT_EQ(history(), "Grö\u00e4e\n");
  }
}

TEST_F(ChatTerminal, AWrongCommandIsToldAndNotSaid) {
  Terminal terminal(kChat, variables());
  terminal.await_prompt();
  terminal.type("/hlep\n");
  terminal.await("wick: /hlep: no such command; did you mean /help?");
  terminal.await_prompt();
  terminal.type("/save\n");
  terminal.await("wick: /save: expected FILE behind it, found none");
  terminal.await_prompt();
  terminal.type("/save x\n");
  terminal.await("nothing has been said yet");
  terminal.await_prompt();
  terminal.type("/help\n");
  for (const char* name : {"/help", "/reset", "/new", "/save FILE", "/exit", "/quit", "//etc"}) terminal.await(name);
  terminal.await_prompt();
  terminal.type("/help\n");
  terminal.await("//etc");
  terminal.await_prompt();
  terminal.type(std::string(kUp) + kUp + "\n");  // behind /help, which was said twice and stands there once
  terminal.await("nothing has been said yet");
  EXPECT_EQ(end(terminal).find("world"), std::string::npos) << "the model's answer to what it does not know";
}

TEST_F(ChatTerminal, ALongLineIsReadWhole) {
  Terminal terminal(kChat, variables());
  terminal.await_prompt();
  terminal.type(std::string(20'000, 'a') + "\n");
  terminal.await("wick: ");
  terminal.await("context");
  terminal.await_prompt();
  terminal.type(kCow + "\n");
  terminal.await(kMoo);
  end(terminal);
  EXPECT_EQ(history(), kCow + "\n") << "none of more than 4 KiB";
}

TEST_F(ChatTerminal, CtrlCEndsAnAnswerAndNotTheChat) {
  Terminal terminal(kChatWarm + "--temperature 100 --max-tokens 400 --verbose",
                    variables());  // which seldom ends itself
  for (int times = 0; times < 3; ++times) {
    terminal.await_prompt();
    terminal.type("/reset\n");
    terminal.await_prompt();
    terminal.type(kCow + "\n");
    terminal.await("cow say?\r\n");
    terminal.interrupt_when_shown();
    terminal.await("answer: ");
  }
  EXPECT_NE(end(terminal).find("ended by cancelled"), std::string::npos);
}

TEST_F(ChatTerminal, StopsAndGoesOn) {
  Terminal terminal(kChat + "; echo stopped; fg", variables(), /*job=*/true);
  terminal.await_prompt();
  terminal.type("What does");
  terminal.await("What does");
  terminal.type(kSuspend);
  terminal.await("stopped");
  terminal.await_prompt();
  terminal.await("What does");
  terminal.type(" a cow say?\n");
  terminal.await(kMoo);
  end(terminal);
}

TEST_F(ChatTerminal, TheNewestThousandLinesAreKept) {
  std::string lines;
  for (int i = 0; i < 1200; ++i) lines += "line " + std::to_string(i) + "\n";
  fs::create_directory(folder / "wick");
  write_plain(folder / "wick/chat_history", lines);
  Terminal terminal(kChat, variables());
  end(terminal, "/exit\n");
  const std::string kept = history();
  EXPECT_TRUE(kept.starts_with("line 200\n")) << kept.substr(0, 20);
  EXPECT_TRUE(kept.ends_with("line 1199\n/exit\n"));
}

// There is none at a file, nor at a folder of its name, nor where neither it nor a home is known; elsewhere it lies in
// the home.
TEST_F(ChatTerminal, AHistoryThatCannotBeKeptIsNoError) {
  write_plain(folder / "file", "");
  fs::create_directories(folder / "here/wick/chat_history");
  const std::string in = "='" + folder.path().string();
  for (const std::string& where :
       {"XDG_STATE_HOME" + in + "/file'", "XDG_STATE_HOME" + in + "/here'", std::string("XDG_STATE_HOME= HOME=")}) {
    Terminal terminal(kChat, where);
    terminal.await_prompt();
    terminal.type(kCow + "\n");
    terminal.await(kMoo);
    terminal.await_prompt();
    terminal.type(kUp);
    terminal.await(kCow);
    terminal.type(kInterrupt);
    end(terminal);
  }
  Terminal terminal(kChat, "XDG_STATE_HOME= HOME" + in + "/home'");
  end(terminal, "/exit\n");
  EXPECT_EQ(read_plain(folder / "home/.local/state/wick/chat_history"), "/exit\n");
}

class ChatLines : public testing::Test {
 protected:
  Outcome chat(const std::string& lines, const std::string& flags = "") {
    write_plain(folder / "lines", lines);
    return run_wick(kChat + flags + " <'" + (folder / "lines").string() + "'", "cd '" + folder.path().string() + "';");
  }
  // The turns in the file that a chat saved.
  std::vector<std::string> saved(const std::string& name = "chat.jsonl") {
    std::vector<std::string> said;
    const std::string line = read_plain(folder / name);
    EXPECT_EQ(std::ranges::count(line, '\n'), 1);
    const nlohmann::json json = nlohmann::json::parse(line);
    for (const auto& message : json.at("messages"))
      said.push_back(message.at("role").get<std::string>().substr(0, 1) + ": " +
                     message.at("content").get<std::string>());
    return said;
  }
  const TemporaryDirectory folder;
};

TEST_F(ChatLines, CommandsWorkWithoutATerminal) {
  const std::string anna = "My name is Anna.\n", name = "What is my name?\n";
  const std::string greeting = "Nice to meet you, Anna!\n";
  EXPECT_EQ(chat(anna + name).out, greeting + "Your name is Anna.\n");
  const std::string apart = chat(anna + "/reset\n" + name).out;
  EXPECT_NE(apart, greeting + "Your name is Anna.\n");
  EXPECT_EQ(chat(anna + "/new\n" + name).out, apart);
  EXPECT_EQ(chat(anna + "/exit\n" + name).out, greeting);
  EXPECT_EQ(chat(anna + "/quit\n" + name).out, greeting);
  const Outcome help = chat("/help\n" + anna);
  EXPECT_EQ(help.out, greeting);
  EXPECT_NE(help.err.find("/save FILE"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder / "wick")) << "no history is kept";
}

TEST_F(ChatLines, SavesWhatCanBeTrainedOn) {
  const Outcome outcome = chat(kCow + "\n/save chat.jsonl\n//etc\n /etc\n/save   chat.jsonl \n", "--system 'Be kind'");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "Wrote 3 messages to chat.jsonl\nWrote 7 messages to chat.jsonl\n");
  const std::vector<std::string> said = saved();
  ASSERT_EQ(said.size(), 7u);
  EXPECT_EQ(said[0], "s: Be kind");
  EXPECT_EQ(said[1], "u: " + kCow);
  EXPECT_EQ(said[2], "a: " + kMoo);
  EXPECT_EQ(said[3], "u: /etc");
  EXPECT_EQ(said[5], "u: /etc");
  const Outcome eval =
      run_wick("eval --model tiny-llm --device cpu --dataset '" + (folder / "chat.jsonl").string() + "'");
  EXPECT_EQ(eval.code, 0) << eval.err;
}

TEST_F(ChatLines, SavesWhatIsForgottenToo) {
  const std::string cows = kCow + "\n" + kCow + "\n" + kCow + "\n" + kCow + "\n";
  const std::string flags = "--context 48 --max-tokens 12 --on-full forget";
  const Outcome outcome = chat(cows + "/save chat.jsonl\n/reset\n" + kCow + "\n/save after.jsonl\n", flags);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string without = "--context 48 --max-tokens 12";
  EXPECT_EQ(chat(cows, without).code, 1) << "so much does not fit";
  EXPECT_EQ(saved().size(), 8u);
  EXPECT_EQ(saved("after.jsonl").size(), 2u);
}

TEST_F(ChatLines, WrongCommandsAreOneLine) {
  write_plain(folder / "mine", "mine");
  fs::create_directory(folder / "folder");
  const auto refuse = [&](const std::string& line, const std::vector<std::string>& words) {
    const Outcome outcome = chat("Hello\n" + line + "\n" + kCow + "\n");
    expect_one_line(outcome, words);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_EQ(outcome.out.find(kMoo), std::string::npos);
  };
  refuse("/exti", {"/exti: no such command; did you mean /exit?", "with two"});
  refuse("/etc/passwd is a file", {"/etc/passwd: no such command ("});
  refuse("/reset now", {"/reset: expected nothing behind it, found \"now\""});
  refuse("/save", {"/save: expected FILE"});
  refuse("/save mine", {"/save mine: the file exists"});
  refuse("/save folder", {"/save folder", "exists"});
  refuse("/save none/x", {"/save", "none/x", "the folder", "does not exist"});
  EXPECT_EQ(read_plain(folder / "mine"), "mine");
}

}  // namespace
}  // namespace wick
