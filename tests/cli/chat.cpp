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

// ChatML whose prompt opens a thought.
const std::string kThinking =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n"
    "</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n{% endif %}";

// ChatML in which the description of a tool, or a document, is the user's message.
const std::string kForTools =
    "{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n"
    "{% if m.role == 'user' and tools %}{{ tools[-1].function.description }}"
    "{% elif m.role == 'user' and documents %}{{ documents[0].text }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

// The model's text, 8 tokens of it, where a thought has begun.
std::string continued(const std::string& message) {
  const std::string prompt = "<|im_start|>user\n" + message + "<|im_end|>\n<|im_start|>assistant\n<think>\n\n";
  const std::string text =
      run_wick("generate --model tiny-llm --device cpu --temperature 0 --max-tokens 8 --prompt '" + prompt + "'").out;
  const size_t first = text.find_first_not_of('\n');
  return text.substr(first, text.find_last_not_of('\n') + 1 - first);
}

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
  for (const char* name : {"/help", "/reset", "/new", "/tools [FILE]", "/result TEXT", "/documents [FILE]",
                           "/save FILE", "/exit", "/quit", "//etc"})
    terminal.await(name);
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

// At a terminal thoughts are dimmed, unless NO_COLOR is set. The prompt opens one here, which does not end.
TEST_F(ChatTerminal, ThoughtsAreDimmed) {
  write_plain(folder / "thinks.jinja", kThinking);
  const std::string flags = kChat + "--max-tokens 8 --chat-template '" + (folder / "thinks.jinja").string() + "'";
  const std::string thought = continued(kCow);
  Terminal dimmed(flags, variables());
  dimmed.await_prompt();
  dimmed.type(kCow + "\n");
  dimmed.await("\x1b[2m" + thought.substr(0, thought.find(' ')));
  dimmed.await("\x1b[22m");
  end(dimmed);
  Terminal plain(flags, variables() + " NO_COLOR=1");
  plain.await_prompt();
  plain.type(kCow + "\n");
  plain.await(thought);
  EXPECT_EQ(end(plain).find("\x1b[2m"), std::string::npos);
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

// Where standard output is no terminal, it has the answers alone.
TEST_F(ChatLines, ThoughtsGoToStandardError) {
  write_plain(folder / "thinks.jinja", kThinking);
  const std::string thought = continued(kCow), flags = "--max-tokens 8 --chat-template thinks.jinja";
  ASSERT_FALSE(thought.empty());
  const Outcome outcome = chat(kCow + "\n/save chat.jsonl\n", flags);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "\n");
  EXPECT_EQ(outcome.err, thought + "\nWrote 2 messages to chat.jsonl\n");
  const auto message = nlohmann::json::parse(read_plain(folder / "chat.jsonl")).at("messages").at(1);
  EXPECT_EQ(message, (nlohmann::json{{"role", "assistant"}, {"content", ""}, {"reasoning_content", thought}}));

  const std::string generate =
      "generate --model tiny-llm --device cpu --temperature 0 --chat " + flags + " --prompt '" + kCow + "'";
  const Outcome once = run_wick(generate, "cd '" + folder.path().string() + "';");
  EXPECT_EQ(once.out, "\n");
  EXPECT_EQ(once.err, thought + "\n");
  const Outcome json = run_wick(generate + " --json", "cd '" + folder.path().string() + "';");
  EXPECT_EQ(json.err, "");
  EXPECT_EQ(nlohmann::json::parse(json.out).at("thought"), thought);
  EXPECT_EQ(nlohmann::json::parse(json.out).at("text"), "");
}

// The template makes a tool's description the user's message, so that the answer shows that the model was given it.
TEST_F(ChatLines, ToolsAndDocumentsAreGivenToTheModel) {
  const std::string flags = "--chat-template tools.jinja";
  write_plain(folder / "tools.jinja", kForTools);
  const std::string tool = R"({"type": "function", "function": {"name": "moo", "description": ")" + kCow + R"("}})";
  write_plain(folder / "list", "[" + tool + "]");
  write_plain(folder / "object", R"({"tools": [{"name": "first"}, )" + tool + "]}");
  write_plain(folder / "none", "[]");
  write_plain(folder / "documents", R"({"documents": [{"title": "Cows", "text": ")" + kCow + R"("}]})");
  const std::string hello = chat("Hello\n", flags).out;
  EXPECT_NE(hello, kMoo + "\n");

  const Outcome tools =
      chat("/tools\n/tools list\nHello\n/tools object\n/tools\n/reset\nHello\n/tools none\n/reset\nHello\n", flags);
  EXPECT_EQ(tools.out, kMoo + "\n" + kMoo + "\n" + hello);
  EXPECT_EQ(tools.err, "tools: none\ntools: moo\ntools: first, moo\ntools: first, moo\ntools: none\n");
  const Outcome documents = chat("/documents\n/documents documents\nHello\n", flags);
  EXPECT_EQ(documents.out, kMoo + "\n");
  EXPECT_EQ(documents.err, "0 documents\n1 document\n");

  // A tool's result is a user's message here.
  EXPECT_EQ(chat("Hello\n/result " + kCow + "\n", flags).out, chat("Hello\n" + kCow + "\n", flags).out);
}

TEST_F(ChatLines, SavesToolsAndTheirResults) {
  write_plain(folder / "tools.jinja", kForTools);
  write_plain(folder / "list", R"([{"type": "function", "function": {"name": "moo", "description": "b", "a": 1}}])");
  write_plain(folder / "documents", R"([{"text": "Moo", "id": 7}])");
  const Outcome outcome = chat("/tools list\n/documents documents\nHello\n/result 3 cows\n/save chat.jsonl\n",
                               "--chat-template tools.jinja --no-thinking");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string line = read_plain(folder / "chat.jsonl");
  const nlohmann::json saved = nlohmann::json::parse(line);
  ASSERT_EQ(saved.at("messages").size(), 4u);
  EXPECT_EQ(saved.at("messages")[2], (nlohmann::json{{"role", "tool"}, {"content", "3 cows"}}));
  EXPECT_EQ(saved.at("documents"), nlohmann::json::parse(R"([{"text": "Moo", "id": 7}])"));
  EXPECT_EQ(saved.at("chat_template_kwargs"), nlohmann::json::parse(R"({"enable_thinking": false})"));
  EXPECT_NE(line.find(R"("tools":[{"type":"function","function":{"name":"moo","description":"b","a":1}}])"), line.npos)
      << "in the order of the file";
  const Outcome eval = run_wick("eval --model tiny-llm --device cpu --chat-template tools.jinja --dataset chat.jsonl",
                                "cd '" + folder.path().string() + "';");
  EXPECT_EQ(eval.code, 0) << eval.err;
}

// A question, its answer, a tool's result and the answer to it are forgotten together.
TEST_F(ChatLines, ExchangesAreForgottenWhole) {
  write_plain(folder / "tools.jinja", kForTools);
  const std::string exchange = kCow + "\n/result " + kCow + "\n";
  const std::string flags = "--chat-template tools.jinja --max-tokens 12 --on-full forget --verbose --context ";
  const auto prompts = [&](const std::string& lines, int context) {
    const Outcome outcome = chat(lines, flags + std::to_string(context));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<int> tokens;
    std::istringstream all(outcome.err);
    for (std::string line; std::getline(all, line);)
      if (line.starts_with("prompt: ")) tokens.push_back(std::stoi(line.substr(8)));
    return tokens;
  };
  const std::vector<int> roomy = prompts(exchange + kCow + "\n", 4096 / 8);
  ASSERT_EQ(roomy.size(), 3u);
  // The third prompt does not fit, nor would it without the first question and answer.
  const std::vector<int> tight = prompts(exchange + kCow + "\n/save chat.jsonl\n", roomy[1] + 12);
  EXPECT_EQ(tight, (std::vector<int>{roomy[0], roomy[1], roomy[0]}));
  EXPECT_EQ(saved().size(), 6u);
  // The result is to be answered: its question cannot be forgotten.
  const Outcome full = chat(exchange, flags + std::to_string(roomy[1] + 11));
  EXPECT_EQ(full.code, 1);
  EXPECT_NE(full.err.find("12 more"), std::string::npos) << full.err;
}

TEST_F(ChatLines, WrongFilesAreOneLine) {
  write_plain(folder / "tools.jinja", kForTools);
  write_plain(folder / "text", "no JSON");
  write_plain(folder / "twice", R"({"tools": [], "tools": []})");
  write_plain(folder / "number", "7");
  write_plain(folder / "object", R"({"functions": []})");
  write_plain(folder / "nameless", R"([{"type": "function", "function": {"description": "none"}}])");
  write_plain(folder / "strings", R"(["moo"])");
  write_plain(folder / "moo", R"([{"name": "moo"}])");
  write_plain(folder / "cows", R"([{"text": "Moo"}])");
  fs::create_directory(folder / "folder");
  const auto refuse = [&](const std::string& line, const std::vector<std::string>& words,
                          const std::string& flags = "--chat-template tools.jinja") {
    const Outcome outcome = chat(line + "\n" + kCow + "\n", flags);
    expect_one_line(outcome, words);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_EQ(outcome.out, "");
  };
  for (const std::string command : {"/tools", "/documents"}) {
    refuse(command + " none", {command + " none", "No such file"});
    refuse(command + " folder", {command + " folder", "directory"});
    refuse(command + " text", {command + " text: not valid JSON"});
    refuse(command + " twice", {command + " twice", "\"tools\" stands twice"});
    refuse(command + " number", {command + " number", "a list of " + command.substr(1), "7"});
    refuse(command + " object", {command + " object", "an object with \"" + command.substr(1) + "\""});
    refuse(command + " strings", {command + " strings", "moo"});
  }
  refuse("/tools nameless", {"/tools nameless", "\"name\""});
  refuse("/tools moo", {"/tools moo: the chat template has no place for \"tools\""}, "");
  refuse("/documents cows", {"/documents cows: the chat template has no place for \"documents\""}, "");
  refuse("/result", {"/result: expected TEXT behind it, found none"});
  refuse("/result 7", {"/result: expected it behind an answer"});
  refuse("/result 7", {"/result: expected it behind an answer"}, "--system 'Be kind'");
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
