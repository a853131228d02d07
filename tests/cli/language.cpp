// Language models from outside, on tiny random ones.
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/program.h"
#include "wick/io/gguf.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"
#include "wick/pipelines/gguf_tokenizer.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kModels = kGolden / "llama";

std::string quoted(const std::string& text) { return "'" + text + "'"; }

// A model with one of the tokenizers.
class Language : public testing::Test {
 protected:
  std::string model(const std::string& tokenizer = "qwen3") {
    const fs::path path = folder / tokenizer;
    if (!fs::exists(path)) {
      fs::copy(kModels / "text", path);
      for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
        fs::copy(kGolden / "tokenizers" / tokenizer / file, path / file);
    }
    return quoted(path.string());
  }
  std::string complete(const std::string& flags, const std::string& prompt = "Once upon a time") {
    const Outcome outcome = run_wick("generate --model " + model() + " --prompt " + quoted(prompt) + " " + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  }
  void refuse(const std::string& arguments, const std::vector<std::string>& words) {
    expect_one_line(run_wick(arguments), words);
  }
  const TemporaryDirectory folder;
};

TEST_F(Language, CompletesAsTransformersDoes) {
  for (const nlohmann::json& row : read_json(kModels / "text/text.json")) {
    const std::string command = "generate --model " + model(row.at("tokenizer")) + " --prompt " +
                                quoted(row.at("prompt")) + " --temperature 0 --max-tokens 24 --device cpu ";
    EXPECT_EQ(run_wick(command).out, row.at("text").get<std::string>() + "\n");
    const nlohmann::json told = parse_json(run_wick(command + "--json").out, "standard output");
    EXPECT_EQ(told.at("text"), row.at("text"));
    EXPECT_EQ(told.at("ids"), row.at("ids"));
    EXPECT_EQ(told.at("tokens"), 24);
    EXPECT_EQ(told.at("finish_reason"), "length");
  }
}

TEST_F(Language, FlagsSayWhatIsDrawn) {
  const std::string greedy = complete("--temperature 0 --max-tokens 20");
  EXPECT_EQ(complete("--top-k 1 --max-tokens 20 --seed 9"), greedy);
  EXPECT_EQ(complete("--top-p 1e-9 --max-tokens 20"), greedy);
  EXPECT_EQ(complete("--min-p 1 --max-tokens 20"), greedy);
  const std::string drawn = complete("--temperature 1.5 --max-tokens 20");
  EXPECT_NE(drawn, greedy);
  EXPECT_EQ(complete("--temperature 1.5 --max-tokens 20 --seed 0"), drawn);
  EXPECT_NE(complete("--temperature 1.5 --max-tokens 20 --seed 1"), drawn);
  EXPECT_NE(complete("--temperature 0 --repetition-penalty 5 --max-tokens 20"), greedy);
  EXPECT_NE(complete("--temperature 0 --max-tokens 20 --bf16"), "");
}

TEST_F(Language, StopsAtText) {
  const std::string whole = complete("--temperature 0 --max-tokens 24");
  const size_t at = whole.find("capital");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(complete("--temperature 0 --max-tokens 24 --stop xyz --stop capital"), whole.substr(0, at) + "\n");
  EXPECT_NE(complete("--temperature 0 --max-tokens 24 --stop capital --json").find("\"finish_reason\":\"stop\""),
            std::string::npos);
}

TEST_F(Language, AFullContextIsAnErrorOrAChoice) {
  const std::string base = "generate --model " + model() + " --prompt 'Once upon a time' --temperature 0 ";
  refuse(base + "--context 10", {"prompt has 10 tokens, more than go into the context of 10"});
  refuse(base + "--max-tokens 119", {"10 tokens", "119 more", "128"});
  refuse(base + "--max-tokens 20 --context 29", {"20 more", "29"});
  refuse(base + "--context 129", {"--context", "128", "129"});
  EXPECT_EQ(run_wick(base + "--max-tokens 20 --context 30").code, 0);
  const nlohmann::json told =
      parse_json(run_wick(base + "--max-tokens 900 --until-full --json").out, "standard output");
  EXPECT_EQ(told.at("tokens"), 119);  // the last one is drawn from a full context
  EXPECT_EQ(told.at("finish_reason"), "length");
}

TEST_F(Language, VerboseTellsRatesAndMemory) {
  const Outcome outcome = run_wick("generate --model " + model() + " --prompt x --max-tokens 3 --verbose");
  for (const char* word : {"prompt: 1 token ", "answer: 3 tokens", "tokens/s", "weights", "in use"})
    EXPECT_NE(outcome.err.find(word), std::string::npos) << word << " in " << outcome.err;
}

TEST_F(Language, WrongInputsAreOneLine) {
  const std::string base = "generate --model " + model() + " --prompt x ";
  refuse(base + "--out x.png", {"--out", "language"});
  refuse(base + "--steps 3", {"--steps", "language"});
  refuse(base + "--prompt y", {"one --prompt", "2"});
  refuse(base + "--temperature -1", {"--temperature", "'-1'"});
  refuse(base + "--temperature nan", {"--temperature", "'nan'"});
  for (const char* wrong : {"--top-p 1.5", "--top-p 0", "--top-p nan", "--min-p 2", "--min-p -0.1", "--top-k -1",
                            "--repetition-penalty 0", "--repetition-penalty inf", "--temperature inf",
                            "--temperature 101", "--max-tokens 1e3", "--context 0", "--seed 99999999999999999999"}) {
    const std::string flag = wrong, value = flag.substr(flag.find(' ') + 1);
    const Outcome outcome = run_wick(base + wrong);
    expect_one_line(outcome, {flag.substr(0, flag.find(' ')) + ": expected", "'" + value + "'"});
    EXPECT_EQ(outcome.code, 2) << wrong;
  }
  refuse(base + "--quantize q2_k", {"--quantize", "'q2_k'", "nf4-double, q8_0, q6_k, q5_k, q4_k, q4_0"});
  refuse(base + "--quantize q8_0 --fp16", {"--quantize", "--fp16", "bf16"});
  refuse(base + "--quantize q8_0", {"model.safetensors", "none of ", "q8_0", "whole blocks of 32"});
  refuse(base + "--quantize q4_k", {"none of ", "q4_k", "whole blocks of 256"});
  refuse(base + "--fp8-compute --quantize int8", {"--fp8-compute", "expected no --quantize or fp8, found int8"});
  refuse(base + "--fp8-compute --fp16", {"--fp16", "bf16"});
  refuse(base + "--stream-blocks 1.5", {"--stream-blocks", "number of blocks or all", "\"1.5\""});
  refuse(base + "--host-memory much", {"--host-memory", "12GiB", "\"much\""});
  refuse(base + "--max-tokens 0", {"--max-tokens", "'0'"});
  refuse(base + "--stop ''", {"--stop", "found none"});
  refuse(base + "--lora " + quoted((kModels / "llama2/adapter").string()), {"adapter_model.safetensors", "shape"});
  refuse(base + "--lora " + quoted((folder / "nothing").string()), {"--lora", "nothing"});
  refuse(base + "--lora " + model(), {"--lora", "qwen3", "folder without adapter_model.safetensors"});
  refuse("generate --model " + quoted((kModels / "llama2").string()) + " --prompt x", {"llama2", "tokenizer"});
  refuse("generate --model " + quoted(kModel) + " --prompt x --out x.png --top-k 3", {"--top-k", "pictures"});
  refuse("train --model " + model() + " --dataset nothing.jsonl --output y", {"nothing.jsonl"});
  refuse("eval --model " + model() + " --dataset nothing.jsonl --context 1", {"--context", "2", "'1'"});
  refuse("chat --model " + quoted(kModel), {"--model", "pictures"});
  const Outcome planned = run_wick("plan --model " + model() + " --sequence-length 999");
  expect_one_line(planned, {"--sequence-length", "128", "999"});
  EXPECT_EQ(planned.out, "");
}

// The GGUF file of a folder completes a text like the folder.
TEST_F(Language, ConvertWritesWhatGenerateReads) {
  const std::string file = quoted((folder / "model.gguf").string()),
                    flags = " --max-tokens 20 --temperature 0 --prompt ";
  const Outcome made = run_wick("convert --model " + model() + " --output " + file);
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_NE(made.out.find("model.gguf, "), std::string::npos) << made.out;
  EXPECT_EQ(run_wick("generate --model " + file + flags + "'Once upon a time'").out,
            complete("--temperature 0 --max-tokens 20"));
  const std::string inspected = run_wick("inspect " + file).out;
  for (const char* word : {"llama model", "general.file_type = 0", "tokenizer.ggml.pre = qwen2"})
    EXPECT_NE(inspected.find(word), std::string::npos) << word;

  const std::string base = "convert --model " + model() + " --output ";
  const std::string other = quoted((folder / "other.gguf").string());
  refuse(base + file, {"--output", "model.gguf", "exists"});
  refuse(base + quoted(folder.path().string()), {"--output", "directory"});
  refuse(base + quoted((folder / "no/x.gguf").string()), {"--output", "does not exist"});
  refuse(base + other + " --dtype q2_k", {"--dtype", "'q2_k'", "q8_0"});
  refuse(base + other + " --dtype q8_0", {"none of ", "q8_0", "whole blocks of 32"});
  refuse("convert --model " + model(), {"--output", "required"});
  refuse("convert --model " + quoted(kModel) + " --output " + other, {"--dtype", "pictures", "nf4-double"});
  refuse(base + other + " --dtype nf4", {"--output", "other.gguf", "nf4", "transformers folder", "q8_0"});
  refuse("convert --model " + quoted((kModels / "llama2").string()) + " --output " + other, {"tokenizer.json"});
  // A limit on the size of a file stands for the full disk.
  expect_one_line(run_wick(base + other, "ulimit -f 100;"), {"other.gguf"});
  EXPECT_EQ(folder.entries(), 2u);  // the folder of the model, and the first file
}

// A folder of codes completes a text like the folder whose weights become the same codes as they are read.
TEST_F(Language, ConvertWritesAQuantisedFolder) {
  const fs::path made = folder / "made";
  const std::string base = "convert --model " + model() + " --output " + quoted(made.string()) + " --dtype ";
  expect_one_line(run_wick(base + "fp8", "ulimit -f 10;"), {"cannot write"});
  refuse(base + "nf4", {"qwen3", "no matrix", "nf4"});
  EXPECT_FALSE(fs::exists(made));
  const Outcome converted = run_wick(base + "fp8");
  EXPECT_EQ(converted.code, 0) << converted.err;
  EXPECT_NE(converted.out.find("weights in fp8\n"), std::string::npos) << converted.out;
  const std::string flags = " --quantize fp8 --max-tokens 20 --temperature 0 --prompt 'Once upon a time'";
  const Outcome completed = run_wick("generate --model " + quoted(made.string()) + flags);
  EXPECT_EQ(completed.out, run_wick("generate --model " + model() + flags).out) << completed.err;
  refuse(base + "int8", {"--output", "exists"});
  fs::remove_all(made);
  EXPECT_EQ(run_wick(base + "fp8 --max-shard-size 20KB").code, 0);
  EXPECT_TRUE(fs::exists(made / "model.safetensors.index.json"));
  EXPECT_EQ(run_wick("generate --model " + quoted(made.string()) + flags).out, completed.out);
}

TEST_F(Language, MergeWritesAGgufFileOfAFolder) {
  const fs::path lora = folder / "out/lora", merged = folder / "merged.gguf";
  write_plain(folder / "lines.jsonl", "{\"text\": \"Once upon a time there was a small house.\"}\n");
  const Outcome trained =
      run_wick("train --model " + model() + " --dataset " + quoted((folder / "lines.jsonl").string()) + " --output " +
               quoted((folder / "out").string()) +
               " --steps 12 --lr 0.02 --rank 4 --targets '*_proj' '-*k_proj' --sequence-length 32");
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.out.find("of rank 4 on 18 modules, "), std::string::npos) << trained.out;
  EXPECT_EQ(trained.out.find("0.00 M"), std::string::npos) << trained.out;
  const std::string with_lora = complete("--temperature 0 --max-tokens 20 --lora " + quoted(lora.string()));
  EXPECT_NE(with_lora, complete("--temperature 0 --max-tokens 20"));
  const std::string merge = "merge --model " + model() + " --lora " + quoted(lora.string()) + " --output ";
  EXPECT_EQ(run_wick(merge + quoted(merged.string())).code, 0);
  EXPECT_EQ(run_wick("generate --model " + quoted(merged.string()) +
                     " --temperature 0 --max-tokens 20 --prompt 'Once upon a time'")
                .out,
            with_lora);
  refuse(merge + quoted((folder / "q.gguf").string()) + " --dtype q8_0", {"none of ", "q8_0", "whole blocks of 32"});
  // Nothing existing is overwritten, or mixed with.
  refuse(merge + quoted(merged.string()), {"--output", "merged.gguf", "file exists"});
  refuse(merge + quoted((folder / "out").string()), {"--output", "folder exists"});
  refuse("generate --model " + model() + " --prompt x --lora " + quoted((folder / "out").string()),
         {"--lora", "its folder `lora`"});
}

TEST_F(Language, ADamagedModelIsOneLine) {
  const std::string base = "generate --model " + model() + " --prompt x ";
  const fs::path path = folder / "qwen3";
  const std::string config = read_plain(path / "config.json"), weights = read_plain(path / "model.safetensors");
  write_plain(path / "config.json", "{\"model_type\": \"mamba\"}");
  refuse(base, {"config.json", "mamba", "mistral"});
  write_plain(path / "config.json", config.substr(0, config.size() / 2));
  refuse(base, {"config.json"});
  write_plain(path / "config.json", config);
  write_plain(path / "model.safetensors", weights.substr(0, weights.size() - 100));
  refuse(base, {"model.safetensors"});
  fs::remove(path / "model.safetensors");
  refuse(base, {"qwen3", "model.safetensors"});
}

// The text model with a template of ChatML, whose tokens qwen3's tokenizer has.
class Chat : public Language {
 protected:
  void SetUp() override {
    model();
    write_plain(folder / "qwen3/chat_template.jinja",
                "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
                "{% endif %}");
  }
  Outcome chat(const std::string& lines, const std::string& flags = "") {
    return run_wick("chat --model " + model() + " --temperature 0 --max-tokens 8 " + flags, "printf '" + lines + "' |");
  }
  std::string completion(const std::string& prompt) {
    const Outcome outcome =
        run_wick("generate --model " + model() + " --temperature 0 --max-tokens 8 --prompt " + quoted(prompt));
    return outcome.out.substr(0, outcome.out.size() - 1);
  }
};

TEST_F(Chat, AnswersLineByLineWithWhatWasSaidBefore) {
  const std::string first = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", answer = completion(first);
  const std::string second = first + answer + "<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(chat("Hello\\n").out, answer + "\n");
  const Outcome both = chat("Hello\\n\\nWhy?");
  EXPECT_EQ(both.code, 0) << both.err;
  EXPECT_EQ(both.out, answer + "\n" + completion(second) + "\n");
  EXPECT_EQ(chat("Hello\\n/new\\nHello\\n").out, answer + "\n" + answer + "\n");
  EXPECT_EQ(run_wick("generate --chat --model " + model() + " --temperature 0 --max-tokens 8 --prompt Hello").out,
            answer + "\n");
  EXPECT_EQ(chat("Hello\\n", "--system 'Be kind'").out,
            completion("<|im_start|>system\nBe kind<|im_end|>\n" + first) + "\n");
  // A user's words are text.
  EXPECT_NE(chat("<|im_end|>\\n").out,
            completion("<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n") + "\n");
}

TEST_F(Chat, AFullContextIsAnErrorOrForgetsTheFirst) {
  const std::string many = "Hello\\nWhy?\\nHello\\nWhy?\\nHello\\n";
  const Outcome full = chat(many, "--context 70");
  expect_one_line(full, {"8 more", "70"});
  const Outcome forgets = chat(many, "--context 70 --on-full forget");
  EXPECT_EQ(forgets.code, 0) << forgets.err;
  EXPECT_EQ(forgets.out.substr(0, full.out.size()), full.out);
  expect_one_line(chat("Hello\\n", "--context 20 --on-full forget"), {"8 more", "20"});
}

// Any standard input is read, but not a line without end.
TEST_F(Chat, ALineHasAnEnd) {
  const std::string command = "chat --model " + model();
  const Outcome outcomes[] = {run_wick(command + " </dev/zero", "ulimit -v 2000000;"),
                              run_wick(command, "yes hello | tr -d '\\n' |")};
  for (const Outcome& outcome : outcomes) {
    expect_one_line(outcome, {"standard input", "1.0 MiB"});
    EXPECT_EQ(outcome.code, 1);
  }
  const Outcome folder_of_lines = run_wick(command + " </");
  expect_one_line(folder_of_lines, {"standard input", "directory"});
  EXPECT_EQ(run_wick(command + " </dev/null").code, 0);
}

TEST_F(Chat, WrongInputsAreOneLine) {
  expect_one_line(chat("", "--on-full explode"), {"--on-full", "'explode'", "error, forget"});
  expect_one_line(chat("", "--context 129"), {"--context", "128", "129"});
  expect_one_line(run_wick("chat --model " + model("llama2")), {"llama2", "--chat-template"});
  expect_one_line(run_wick("chat --model " + model("llama2") + " --chat-template chatml"), {"chatml", "<|im_start|>"});
  expect_one_line(run_wick("chat --model " + model("llama2") + " --chat-template alpaca"), {"alpaca", "mistral-v1"});
  expect_one_line(chat("", "--chat-template-kwargs '[1]'"), {"--chat-template-kwargs", "a JSON object", "[1]"});
  expect_one_line(chat("", "--template-date yesterday"), {"--template-date", "2026-11-27", "yesterday"});
  expect_one_line(run_wick("chat --model " + quoted(kModel)), {"sdxl"});
}

TEST_F(Language, AChatTemplateByNameServesAModelWithoutOne) {
  const std::string base = "generate --model " + model() + " --temperature 0 --max-tokens 8 ";
  expect_one_line(run_wick(base + "--chat --prompt Hello"), {"qwen3", "--chat-template"});
  const Outcome named = run_wick(base + "--chat --chat-template chatml --prompt Hello");
  EXPECT_EQ(named.code, 0) << named.err;
  EXPECT_EQ(named.out, run_wick(base + "--prompt '<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n'").out);
  expect_one_line(run_wick(base + "--chat-template chatml --prompt Hello"), {"--chat-template", "--chat"});

  write_plain(
      folder / "chats.jsonl",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Yo\"}]}\n");
  const std::string eval = "eval --model " + model() + " --dataset " + quoted((folder / "chats.jsonl").string());
  expect_one_line(run_wick(eval), {"chats.jsonl: line 1", "--chat-template"});
  EXPECT_EQ(run_wick(eval + " --chat-template chatml").code, 0);
  const std::string train = "train --steps 1 --model " + model() + " --dataset " +
                            quoted((folder / "chats.jsonl").string()) + " --output " +
                            quoted((folder / "out").string());
  EXPECT_EQ(run_wick(train + " --chat-template chatml --sequence-length 32").code, 0);
  expect_one_line(run_wick(train + "/other --chat-template llama3 --sequence-length 32"),
                  {"llama3", "<|start_header_id|>"});
}

// A template that a run was given is kept with its result, and goes on from there.
TEST_F(Language, AChatTemplateGoesWithTheResult) {
  const std::string jinja =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  const auto path = [&](const char* name) { return quoted((folder / name).string()); };
  write_plain(folder / "own.jinja", jinja);
  write_plain(folder / "chats.jsonl",
              "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
              "\"content\": \"Yo\"}]}\n");
  const std::string train = "train --model " + model() + " --dataset " + path("chats.jsonl") + " --output " +
                            path("out") + " --sequence-length 32 --chat-template " + path("own.jinja");
  const Outcome trained = run_wick(train + " --steps 1");
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(read_plain(folder / "out/lora/chat_template.jinja"), jinja);

  const std::string ask = " --temperature 0 --max-tokens 4 --prompt Hi";
  const auto answer = [&](const std::string& flags) {
    const Outcome outcome = run_wick("generate --chat " + flags + ask);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string adapted = answer("--model " + model() + " --lora " + path("out/lora"));
  EXPECT_EQ(
      run_wick("eval --model " + model() + " --lora " + path("out/lora") + " --dataset " + path("chats.jsonl")).code,
      0);
  const auto run = [&](const std::string& command) {
    const Outcome outcome = run_wick(command);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  };
  run("merge --model " + model() + " --lora " + path("out/lora") + " --output " + path("merged"));
  EXPECT_EQ(read_plain(folder / "merged/chat_template.jinja"), jinja);
  EXPECT_EQ(answer("--model " + path("merged")), adapted);
  run("convert --model " + path("merged") + " --output " + path("merged.gguf"));
  EXPECT_EQ(answer("--model " + path("merged.gguf")), adapted);
  run("merge --model " + model() + " --lora " + path("out/lora") + " --output " + path("other.gguf"));
  EXPECT_EQ(answer("--model " + path("other.gguf")), adapted);
  run("merge --model " + model() + " --lora " + path("out/lora") + " --output " + path("named") +
      " --chat-template chatml");
  EXPECT_NE(read_plain(folder / "named/chat_template.jinja"), jinja);
  run("convert --model " + path("named") + " --output " + path("named.gguf") + " --chat-template " + path("own.jinja"));
  EXPECT_EQ(Tokenizer::from_arrays(tokenizer_arrays(GgufFile::open(folder / "named.gguf").metadata()), "x")
                .chat_templates()
                .at("default"),
            jinja);
  run("train --model " + model() + " --from " + path("out/lora") + " --dataset " + path("chats.jsonl") + " --output " +
      path("further") + " --sequence-length 32 --steps 1");
  EXPECT_EQ(read_plain(folder / "further/lora/chat_template.jinja"), jinja);

  write_plain(folder / "own.jinja", "{{ bos_token }}" + jinja);
  expect_one_line(run_wick(train + " --steps 2 --resume"), {"--resume", "the chat template"});
}

// The time that a template tells is the one of the run's beginning.
TEST_F(Language, ARunKeepsTheDateOfItsTemplate) {
  const auto path = [&](const char* name) { return quoted((folder / name).string()); };
  write_plain(
      folder / "dated.jinja",
      "{{ strftime_now('%H:%M:%S') }}{% for m in messages %}{{ m.role + m.content + '<|im_end|>' }}{% endfor %}");
  write_plain(folder / "chats.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"Yo\"}]}\n");
  const std::string train = "train --model " + model() + " --dataset " + path("chats.jsonl") + " --output " +
                            path("out") + " --sequence-length 32 --chat-template " + path("dated.jinja");
  EXPECT_EQ(run_wick(train + " --steps 1").code, 0);
  const Outcome resumed = run_wick(train + " --steps 2 --resume");
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  expect_one_line(run_wick(train + " --steps 3 --resume --template-date 2020-01-01"),
                  {"--template-date", "2020-01-01"});
}

TEST_F(Language, ForwardNeedsNoComponent) {
  const std::string out = (folder / "out.safetensors").string();
  const Outcome outcome =
      run_wick("forward --model " + quoted((kModels / "mistral").string()) + " --grad --lora " +
               quoted((kModels / "mistral/adapter").string()) + " --in " +
               quoted((kModels / "mistral/grad.in.safetensors").string()) + " --out " + quoted(out));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const SafetensorsFile file = SafetensorsFile::open(out);
  EXPECT_EQ(file.tensors().at("logits").shape, (Shape{3, 19, 97}));
  EXPECT_TRUE(file.has("loss"));
  EXPECT_TRUE(file.has("grad.base_model.model.model.layers.2.mlp.down_proj.lora_B.weight"));
}

// The model that ships with Wick.
class TinyLlm : public Language {
 protected:
  std::string answer(const std::string& question, const std::string& flags = "") {
    const Outcome outcome = run_wick("generate --model tiny-llm --chat --temperature 0 --max-tokens 120 --device cpu " +
                                     flags + " --prompt " + quoted(question));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  }
};

TEST_F(TinyLlm, AnswersWhatItsWorldHas) {
  EXPECT_EQ(answer("What does a cow say?"), "A cow says moo.\n");
  EXPECT_EQ(answer("What day comes after Monday?"), "After Monday comes Tuesday.\n");
  for (const std::string flags : {"--quantize q8_0", "--quantize q6_k", "--quantize q5_k", "--quantize q4_k",
                                  "--fp8-compute", "--fp8-compute --memory 8GiB --host-memory 1GiB"})
    EXPECT_EQ(answer("What colour is the snow?", flags), "The snow is white.\n") << flags;
  EXPECT_NE(run_wick("generate --model tiny-llm --prompt x --max-tokens 1 --verbose --fp8-compute")
                .err.find("fp8, multiplied in fp8: 28 weights"),
            std::string::npos);
  EXPECT_EQ(run_wick("chat --model tiny-llm --fp8-compute --temperature 0",
                     "printf 'My name is Anna.\\nWhat is my name?\\n' |")
                .out,
            "Nice to meet you, Anna!\nYour name is Anna.\n");
  const std::string story = answer("Tell me a story about Tom and a frog.");
  EXPECT_NE(story.find("Tom"), std::string::npos) << story;
  EXPECT_TRUE(story.ends_with(".\n")) << story;
  const Outcome plan = run_wick("plan --model tiny-llm --train full");
  EXPECT_NE(plan.out.find("The whole language model, 2.89 M parameters"), std::string::npos) << plan.out << plan.err;
}

TEST_F(TinyLlm, LearnsToAnswerLikeAPirate) {
  const fs::path data = test::source_dir() / "data/tiny-pirate";
  for (const std::string base : {"", "q4_k"}) {
    const std::string output = (folder / ("out" + base)).string(), quantize = base.empty() ? "" : "--quantize " + base;
    const Outcome outcome = run_wick(
        "train --model tiny-llm --device cpu --rank 8 --lr 5e-3 --steps 12 --batch-size 2 --val-every 3 --dataset " +
        quoted((data / "train.jsonl").string()) + " --val " + quoted((data / "val.jsonl").string()) + " --output " +
        quoted(output) + " " + quantize);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out.find("base in q4_k: 29 weights") != std::string::npos, !base.empty()) << outcome.out;
    std::vector<double> losses;
    std::istringstream lines(read_plain(fs::path(output) / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);)
      if (const nlohmann::json step = parse_json(line, "metrics.jsonl"); step.contains("val_loss"))
        losses.push_back(step.at("val_loss"));
    ASSERT_EQ(losses.size(), 4u);
    for (size_t i = 1; i < losses.size(); ++i) EXPECT_LT(losses[i], losses[i - 1]);
    EXPECT_LT(losses.back(), 0.6 * losses.front());
    EXPECT_NE(answer("What does a cow say?", quantize + " --lora " + quoted(output + "/lora")), "A cow says moo.\n");
  }
}

}  // namespace
}  // namespace wick
