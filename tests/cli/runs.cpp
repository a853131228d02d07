// Training runs and their folders: anything that would endanger data is refused in one line, and a run writes only its
// own files.
#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "cli/program.h"
#include "wick/io/image.h"
#include "wick/io/safetensors.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

struct Wrong {
  std::string before;     // shell text
  std::string arguments;  // $M: the model, $P: a copy of it, $D: a folder of two pictures, $T: a folder with both
  int code;
  std::vector<std::string> words;
};

const std::string kTrain = "train --model $P --dataset $D --device cpu --resolution 64 --steps 1 --rank 2 ";
const std::string kOut = kTrain + "--output $T/out ";
const std::string kPictures = "train --model $P --device cpu --resolution 64 --steps 1 --output $T/out --dataset ";
const std::string kText = "train --model tiny-llm --device cpu --steps 1 --output $T/out --dataset ";

const std::vector<Wrong> kWrong = {
    // --resume without a run.
    {"", kOut + "--resume", 1, {"--output $T/out", "holds no run to --resume", "no such folder"}},
    {"mkdir $T/out;", kOut + "--resume", 1, {"--output $T/out", "holds no run", "no state/"}},
    {"mkdir -p $T/out/state $T/out/logs;", kOut + "--resume", 1, {"--output $T/out", "holds no run"}},

    // The run's files would be part of its input.
    {"", kTrain + "--output $D", 1, {"--output $D", "lies in --dataset $D"}},
    {"", kTrain + "--output $D/a/b/c", 1, {"--output $D/a/b/c", "lies in --dataset $D"}},
    {"", kTrain + "--output $T/../$(basename $T)/pictures/x", 1, {"--output", "lies in --dataset $D"}},
    {"ln -s $D $T/link;", kTrain + "--output $T/link/x", 1, {"--output $T/link/x", "lies in --dataset $D"}},
    {"mkdir $D/x; ln -s $D/x $T/link;", kTrain + "--output $T/link", 1, {"--output $T/link", "lies in --dataset"}},
    {"ln -s $D $T/link;", kPictures + "$T/link --output $D/x", 1, {"--output $D/x", "in --dataset $T/link"}},
    {"mkdir $T/out; mv $D $T/out/logs;", kPictures + "$T/out/logs", 1, {"--output $T/out", "write over --dataset"}},
    {"mkdir -p $T/out/state; mv $D $T/out/state/x;", kPictures + "$T/out/state/x", 1, {"write over --dataset"}},
    {"mkdir $T/out; mv $D $T/out/lora;", kPictures + "$T/out/lora", 1, {"--output $T/out", "lora"}},
    {"mkdir $T/out; echo '{\"text\": \"a b\"}' >$T/out/metrics.jsonl;",
     kText + "$T/out/metrics.jsonl",
     1,
     {"--output $T/out", "write over", "metrics.jsonl"}},
    {"mkdir -p $T/out/logs; echo '{\"text\": \"a b\"}' >$T/out/logs/a.jsonl; echo '{\"text\": \"a b\"}' >$T/b.jsonl;",
     kText + "$T/b.jsonl $T/out/logs/a.jsonl",
     1,
     {"--output $T/out", "write over", "a.jsonl"}},
    {"mkdir -p $T/out/state; echo '{\"text\": \"a b\"}' >$T/out/state/v; echo '{\"text\": \"a b\"}' >$T/b.jsonl;",
     kText + "$T/b.jsonl --val $T/out/state/v",
     1,
     {"--output $T/out", "write over", "state/v"}},
    {"", kTrain + "--output $P", 1, {"--output $P", "lies in --model $P"}},
    {"", kTrain + "--output $P/unet", 1, {"--output $P/unet", "lies in --model $P"}},
    {"", kTrain + "--output $P/new/x", 1, {"--output $P/new/x", "lies in --model $P"}},
    {"ln -s $P/vae $T/link;", kTrain + "--output $T/link/x", 1, {"--output $T/link/x", "lies in --model"}},
    {"mv $P/unet $T/unet; ln -s $T/unet $P/unet;", kTrain + "--output $T/unet/x", 1, {"lies in --model $P"}},
    {"mkdir -p $T/out/state; mv $P $T/out/state/m;", kOut + "--model $T/out/state/m", 1, {"write over --model"}},

    // Nothing is written through a link.
    {"mkdir -p $T/out $T/x; ln -s $T/x $T/out/state;", kOut, 1, {"--output $T/out: $T/out/state is a link"}},
    {"mkdir -p $T/out $T/x; ln -s $T/x $T/out/logs;", kOut, 1, {"--output $T/out: $T/out/logs is a link"}},
    {"mkdir -p $T/out $T/x; ln -s $T/x $T/out/samples;", kOut, 1, {"--output $T/out: $T/out/samples is a link"}},
    {"mkdir -p $T/out $T/x; ln -s $T/x $T/out/cache;", kOut, 1, {"$T/out/cache is a link", "--cache names a folder"}},
    {"mkdir -p $T/out/logs $T/x; ln -s $T/x $T/out/logs/samples;", kOut, 1, {"$T/out/logs/samples is a link"}},
    {"mkdir $T/out; ln -s $T/none $T/out/state;", kOut, 1, {"$T/out/state is a link"}},
    {"mkdir $T/out; ln -s $T/none $T/out/samples;", kOut + "--resume", 1, {"$T/out/samples is a link"}},
    {"mkdir -p $T/out $T/x; ln -s $T/x $T/out/loss.png;", kOut, 1, {"$T/out/loss.png is a link"}},
    {"mkdir -p $T/out $T/x; ln -s $T/x $T/out/lora.safetensors;", kOut, 1, {"$T/out/lora.safetensors is a link"}},
    {"mkdir -p $T/out $T/x; ln -s $T/x $T/out/lora; echo '{\"text\": \"a b\"}' >$T/a.jsonl;",
     kText + "$T/a.jsonl",
     1,
     {"$T/out/lora is a link"}},
    {"mkdir $T/out; ln -s $T/none $T/out/lora-000007; echo '{\"text\": \"a b\"}' >$T/a.jsonl;",
     kText + "$T/a.jsonl",
     1,
     {"$T/out/lora-000007 is a link"}},
    {"mkdir $T/out; ln -s $T/none $T/out/my.lora; echo '{\"text\": \"a b\"}' >$T/a.jsonl;",
     kText + "$T/a.jsonl --name my.lora",
     1,
     {"$T/out/my.lora is a link"}},
    {"mkdir -p $T/out/all $T/x; ln -s $T/x $T/out/all/unet;",
     kOut + "--train full --name all",
     1,
     {"out/all/unet is a"}},

    // Pictures and their folders.
    {"mkdir $D/2024_holiday;", kOut, 1, {"--dataset $D", "2024_holiday", "at most 1000"}},
    {"rm $D/a.txt; echo x >$D/b.png; touch $D/c.avif;",
     kOut,
     1,
     {"--dataset $D: ", "a.png: no caption", "b.png: expected", "c.avif: .avif is not a format"}},
    {"head -c 300 $D/a.png >$D/x; mv $D/x $D/a.png; >$D/b.txt;", kOut, 1, {"b.txt: the caption is empty", "a.png: "}},
    {"head -c 300 $D/a.png >$D/x; mv $D/x $D/a.png;", kOut, 1, {"--dataset $D/a.png: ", "remove the picture"}},
    {"echo x | gzip >$T/a.zip;", kPictures + "$T/a.zip", 1, {"--dataset $T/a.zip", "a gzip archive"}},
    {"mkfifo $T/pipe;", kPictures + "$T/pipe", 1, {"--dataset $T/pipe", "expected a folder"}},

    // Files of data sets.
    {"echo 'datasets = 3' >$T/set.toml;", kPictures + "$T/set.toml", 2, {"--dataset $T/set.toml: [[datasets]]"}},
    {"echo '[[datasets' >$T/set.toml;", kPictures + "$T/set.toml", 2, {"--dataset $T/set.toml: line 1"}},
    {"head -c 99 /dev/urandom >$T/set.toml;", kPictures + "$T/set.toml", 2, {"--dataset $T/set.toml: line "}},
    {"mkfifo $T/set.toml;", kPictures + "$T/set.toml", 1, {"--dataset $T/set.toml", "expected a file"}},
    {"printf '[[datasets]]\n[[datasets.subsets]]\nimage_dir = \"pictures\"\nkeep_token = 1\n' >$T/set.toml;",
     kPictures + "$T/set.toml",
     2,
     {"--dataset $T/set.toml: [[datasets]] 1, subset 1: keep_token: no such key; did you mean keep_tokens?"}},
    {"rm $D/a.txt; printf '[[datasets]]\n[[datasets.subsets]]\nimage_dir = \"pictures\"\n[[datasets.subsets]]\n"
     "image_dir = \"none\"\n' >$T/set.toml;",
     kPictures + "$T/set.toml",
     1,
     {"--dataset $T/set.toml: 2 faults: (1) image_dir $T/none: no such folder (2) ", "a.png: no caption"}},
    {"printf '[general]\nbatch_size = 2\n[[datasets]]\n[[datasets.subsets]]\nimage_dir = \"pictures\"\n' "
     ">$T/set.toml;",
     kPictures + "$T/set.toml --batch-size auto",
     2,
     {"--batch-size auto", "$T/set.toml says how many"}},
    {"printf '[[datasets]]\n[[datasets.subsets]]\nimage_dir = \"pictures\"\n' >$T/set.toml;",
     "train --model $P --dataset $T/set.toml --output $D/out --steps 1",
     1,
     {"--output $D/out", "lies in --dataset $D"}},

    // Text.
    {"echo '[{\"text\": \"a b\"}]' >$T/a.json;", kText + "$T/a.json", 1, {"--dataset $T/a.json", "a JSON array"}},
    {"echo '{\"text\": \"a b\"}' | gzip >$T/a.gz;", kText + "$T/a.gz", 1, {"--dataset $T/a.gz", "a gzip archive"}},
    {"printf 'PK\\003\\004' >$T/a.zip;", kText + "$T/a.zip", 1, {"--dataset $T/a.zip", "a ZIP archive"}},
    {"printf PAR1 >$T/a.parquet;", kText + "$T/a.parquet", 1, {"--dataset $T/a.parquet", "a Parquet file"}},
    {"printf '{\\n3\\n' >$T/a.jsonl;", kText + "$T/a.jsonl", 1, {"--dataset $T/a.jsonl: 2 faults", "line 1", "line 2"}},
    {"mkfifo $T/pipe;", kText + "$T/pipe", 1, {"--dataset $T/pipe", "expected a file"}},
    {"", kText + "/dev/zero", 1, {"--dataset /dev/zero", "expected a file"}},
    {"", kText + "$D", 1, {"--dataset $D", "expected a file", "directory"}},

    // Files of settings that are wrong in themselves.
    {"echo 'rank = \"4\"' >$T/c.toml;",
     kOut + "--config $T/c.toml",
     2,
     {"--config $T/c.toml: rank: expected an integer, found the string \"4\""}},
    {"echo 'rnak = 4' >$T/c.toml;", kOut + "--config $T/c.toml", 2, {"--config $T/c.toml: rnak"}},
    {"echo 'rank = ' >$T/c.toml;", kOut + "--config $T/c.toml", 2, {"--config $T/c.toml: line 1"}},
    {"echo 'steps = 2\nepochs = 2' >$T/c.toml;",
     "train --config $T/c.toml --model $P --dataset $D --output $T/out",
     2,
     {"--steps and --epochs"}},
    {"", kOut + "--config $T/none.toml", 1, {"--config $T/none.toml", "No such file"}},
    {"", kOut + "--rank 0", 2, {"--rank", "'0'"}},
    {"", kOut + "--epochs 2", 2, {"--steps and --epochs"}},
    {"", kOut + "--state-every-minutes -1", 2, {"--state-every-minutes", "'-1'", "from 0"}},
    {"", kOut + "--state-every-minutes nan", 2, {"--state-every-minutes", "'nan'"}},
    {"", kOut + "--train vae --targets x", 2, {"--targets", "vae"}},
    {"", kOut + "--train full --lora-dropout 0.1", 2, {"--lora-dropout", "full"}},
    {"", kOut + "--keep-precision '*'", 2, {"--keep-precision", "--quantize"}},
    {"", kOut + "--quantize nf5", 2, {"--quantize", "nf4", "'nf5'"}},
    {"", kOut + "--fp8-compute --quantize int8", 2, {"--fp8-compute", "--quantize", "int8"}},
    {"", kOut + "--fp8-compute --train full", 2, {"--fp8-compute", "full"}},
    {"", kOut + "--device tpu", 2, {"--device", "'tpu'"}},
    {"", kOut + "--name a/b", 2, {"--name", "'a/b'"}},
    {"", kOut + "--name state", 2, {"--name", "'state'"}},
    {"", kOut + "--name loss.png", 2, {"--name", "'loss.png'"}},
    {"", kOut + "--name index.html", 2, {"--name", "'index.html'"}},
    {"", kOut + "--name samples", 2, {"--name", "'samples'"}},
    {"", kOut + "--name " + std::string(250, 'x'), 2, {"--name", "at most 200 bytes, found 250"}},
    {"", "train", 2, {"--model is missing"}},
};

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

class Folder {
 public:
  Folder() {
    fs::copy(kModel, folder_ / "model", fs::copy_options::recursive);
    fs::create_directory(folder_ / "pictures");
    for (const auto& [name, from] : {std::pair{"a", "0001"}, std::pair{"b", "0002"}})
      for (const char* extension : {".png", ".txt"})
        fs::copy(test::source_dir() / "data/tiny-style" / (from + std::string(extension)),
                 folder_ / "pictures" / (name + std::string(extension)));
  }
  fs::path operator/(std::string_view name) const { return folder_ / name; }
  std::string filled(std::string text) const {
    text = replace_all(replace_all(text, "$D", "$T/pictures"), "$P", "$T/model");
    return replace_all(text, "$T", folder_.path().string());
  }

 private:
  TemporaryDirectory folder_;
};

// All files and links, by their names: their contents, or their targets.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    all[entry.path().string()] = entry.is_symlink()        ? "-> " + fs::read_symlink(entry).string()
                                 : entry.is_regular_file() ? read_plain(entry)
                                                           : "";
  return all;
}

TEST(Runs, WrongOnesEndWithOneLineAndWriteNothing) {
  for (const Wrong& wrong : kWrong) {
    const Folder folder;
    SCOPED_TRACE(wrong.before + " wick " + wrong.arguments);
    ASSERT_EQ(std::system(folder.filled(wrong.before + ":").c_str()), 0);
    const auto before = contents(folder / "");
    std::vector<std::string> words;
    for (const std::string& word : wrong.words) words.push_back(folder.filled(word));
    const Outcome outcome = run_wick(folder.filled(wrong.arguments));
    expect_one_line(outcome, words);
    EXPECT_EQ(outcome.code, wrong.code) << outcome.err;
    EXPECT_EQ(contents(folder / ""), before);
  }
}

// A run of pictures, and one of text, whose result is a folder.
const std::string kRuns[] = {kOut, kText + "$T/a.jsonl --rank 2 --sequence-length 64 "};

TEST(Runs, FilesAreReplacedAndNeverWrittenThrough) {
  for (const std::string& run : kRuns)
    for (const bool symbolic : {true, false}) {
      SCOPED_TRACE(run + (symbolic ? "symbolic" : "hard"));
      const Folder folder;
      write_plain(folder / "a.jsonl", "{\"text\": \"Once upon a time\"}\n");
      ASSERT_EQ(run_wick(folder.filled(run + "--steps 3 --save-every 1")).code, 0);
      fs::create_directory(folder / "victims");
      std::vector<fs::path> names;
      for (const auto& entry : fs::recursive_directory_iterator(folder / "out"))
        if (entry.is_regular_file()) names.push_back(entry.path());
      EXPECT_GE(names.size(), 11u);
      for (const auto& file : std::vector(names)) names.push_back(file.string() + ".tmp-wick");
      for (const char* next : {"state/state-000005.safetensors", "lora-000005.safetensors"})
        names.push_back(folder / "out" / next);
      // The run resumes from a state behind a link too.
      for (size_t i = 0; i < names.size(); ++i) {
        const fs::path victim = folder / "victims" / std::to_string(i);
        fs::exists(names[i]) ? fs::rename(names[i], victim) : write_plain(victim, "mine");
        symbolic ? fs::create_symlink(victim, names[i]) : fs::create_hard_link(victim, names[i]);
      }
      const auto before = contents(folder / "victims");
      const Outcome outcome = run_wick(folder.filled(run + "--steps 6 --save-every 1 --resume"));
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      EXPECT_NE(outcome.out.find("going on after step 3"), std::string::npos) << outcome.out;
      EXPECT_EQ(contents(folder / "victims"), before);
      for (const char* file : {"config.toml", "loss.png", "metrics.jsonl", "logs/events.out.tfevents.wick",
                               "state/dataset.sha256", "state/state-000005.safetensors"})
        EXPECT_FALSE(fs::is_symlink(folder / "out" / file)) << file;
    }
}

TEST(Runs, TheFolderMayBeALinkAndThoseInItMayNot) {
  for (const std::string& run : kRuns) {
    const Folder folder;
    write_plain(folder / "a.jsonl", "{\"text\": \"Once upon a time\"}\n");
    write_plain(folder / "p.txt", "a\n");
    for (const char* name : {"real", "victims"}) fs::create_directory(folder / name);
    fs::create_directory_symlink(folder / "real", folder / "out");
    const std::string with_all = run + "--sample-prompts $T/p.txt --sample-every 1 --save-every 1 ";
    ASSERT_EQ(run_wick(folder.filled(with_all)).code, 0);
    EXPECT_TRUE(fs::is_symlink(folder / "out"));
    size_t tried = 0;
    for (const char* name : {"state", "logs", "logs/samples", "samples", "cache", "lora", "lora-000001"}) {
      const fs::path inside = folder / "real" / name, victim = folder / "victims/v";
      if (!fs::is_directory(inside)) continue;
      ++tried;
      fs::rename(inside, victim);
      for (const bool dangles : {false, true}) {
        SCOPED_TRACE(std::string(name) + (dangles ? " dangles" : ""));
        fs::create_symlink(dangles ? folder / "none" : victim, inside);
        const auto before = contents(folder / "");
        const Outcome outcome = run_wick(folder.filled(with_all + "--steps 2 --resume"));
        expect_one_line(outcome, {"--output", std::string("out/") + name + " is a link"});
        EXPECT_EQ(contents(folder / ""), before);
        fs::remove(inside);
      }
      fs::rename(victim, inside);
    }
    EXPECT_GE(tried, 5u);
    EXPECT_EQ(run_wick(folder.filled(with_all + "--steps 2 --resume")).code, 0);
  }
}

TEST(Runs, FoldersThatFlagsNameMayBeLinks) {
  const Folder folder;
  for (const char* name : {"disk", "out"}) fs::create_directory(folder / name);
  for (const char* link : {"elsewhere", "out/cache"}) fs::create_directory_symlink(folder / "disk", folder / link);
  EXPECT_EQ(run_wick(folder.filled(kOut + "--cache $T/elsewhere")).code, 0);
  EXPECT_FALSE(fs::is_empty(folder / "disk"));
}

TEST(Runs, DanglingLinksInThePlaceOfFilesAreReplaced) {
  for (const std::string& run : kRuns) {
    const Folder folder;
    write_plain(folder / "a.jsonl", "{\"text\": \"Once upon a time\"}\n");
    ASSERT_EQ(run_wick(folder.filled(run + "--steps 2 --save-every 1")).code, 0);
    fs::create_directory(folder / "victims");
    std::vector<fs::path> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder / "out"))
      if (entry.is_regular_file() && entry.path().parent_path().filename() != "state") names.push_back(entry.path());
    EXPECT_GE(names.size(), 6u);
    for (size_t i = 0; i < names.size(); ++i) {
      fs::remove(names[i]);
      fs::create_symlink(folder / "victims" / std::to_string(i), names[i]);
    }
    const Outcome outcome = run_wick(folder.filled(run + "--steps 4 --save-every 1 --resume"));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(fs::is_empty(folder / "victims"));
  }
}

TEST(Runs, WhatIsLeftOutOrReadAsWordsIsTold) {
  const Folder folder;
  write_plain(folder / "pictures/a.txt", "a (red:1.3) fox BREAK");
  write_plain(folder / "pictures/b.txt", "[trigger] in snow");
  write_plain(folder / "pictures/c.txt", "no picture");
  write_plain(folder / "pictures/notes.md", "none");
  write_plain(folder / "pictures/d.pic", "....ftypheic....");
  write_plain(folder / "p.txt", "plain --s 1\na {red|blue} fox --n <lora:x:1> --s 1\n");
  const Outcome outcome = run_wick(folder.filled(kOut + "--sample-prompts $T/p.txt"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* line : {"1 caption has no picture and is not read: c.txt.\n",
                           "1 file is neither picture nor caption and is not read: notes.md.\n",
                           "1 image is of a format that Wick does not read, and is left out: d.pic (a HEIF image).\n",
                           "2 captions hold what other programs interpret: \"(red:1.3)\" and \"BREAK\" are read as "
                           "plain words in a.txt.\n",
                           "p.txt: line 2: \"<lora:x:1>\" and \"{red|blue}\" are read as plain words.\n"})
    EXPECT_NE(outcome.out.find(line), std::string::npos) << outcome.out << line;
}

TEST(Runs, ATriggerWordIsInPreviewsToo) {
  const Folder folder;
  write_plain(folder / "p.txt", "a [trigger] fox, [trigger] --n no [trigger] --l 2 --s 1\n");
  const Outcome outcome = run_wick(folder.filled(kOut + "--sample-prompts $T/p.txt --trigger-word ohwx"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("--prompt 'a ohwx fox, ohwx'"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("[trigger]"), std::string::npos) << outcome.out;
  for (const char* step : {"000000", "000001"}) {
    const auto texts = read_image_texts(folder / "out/samples" / ("lora-" + std::string(step) + "-00.png"));
    EXPECT_NE(texts.at("wick").find("\"a ohwx fox, ohwx\""), std::string::npos) << texts.at("wick");
    EXPECT_NE(texts.at("wick").find("\"no ohwx\""), std::string::npos) << texts.at("wick");
  }
  EXPECT_EQ(read_plain(folder / "out/samples/prompts.txt").find("[trigger]"), std::string::npos);
  EXPECT_EQ(read_plain(folder / "out/index.html").find("a [trigger]"), std::string::npos);
}

// The first lines name the model, the data, the steps and the result's path. Details follow.
TEST(Runs, BeginWithWhatTheyAreAbout) {
  const Folder folder;
  const Outcome outcome = run_wick(folder.filled(kOut));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const size_t about = outcome.out.find("Training "), result = outcome.out.find("The result will be "),
               memory = outcome.out.find("Memory on cpu"), modules = outcome.out.find("A LoRA of rank 2");
  EXPECT_LT(about, result);
  EXPECT_LT(result, memory);
  EXPECT_LT(memory, modules);
  ASSERT_NE(modules, std::string::npos);
  for (const std::string& word :
       {folder.filled("Training $T/model on 2 pictures in "), std::string("; 1 step of 1 picture."),
        folder.filled("The result will be $T/out/lora.safetensors; ")})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << outcome.out;
  const size_t step = outcome.out.find("step 1/1");
  ASSERT_NE(step, std::string::npos);
  EXPECT_EQ(outcome.out.find(" left", step), std::string::npos) << "one step tells nothing of the time";
}

TEST(Runs, RepeatsAreToldAndCountedAsInKohyas) {
  const Folder folder;
  fs::create_directory(folder / "pictures/10_cat");
  fs::create_directory(folder / "pictures/3_dog");
  for (const char* extension : {".png", ".txt"}) {
    fs::rename(folder / (std::string("pictures/a") + extension),
               folder / (std::string("pictures/10_cat/a") + extension));
    fs::rename(folder / (std::string("pictures/b") + extension),
               folder / (std::string("pictures/3_dog/b") + extension));
  }
  const std::string run = replace_all(kOut, "--steps 1", "--epochs 1") + "--batch-size 2";
  const Outcome outcome = run_wick(folder.filled(run));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"10_cat: 1 picture × 10\n", "3_dog: 1 picture × 3\n", "2 pictures, shown 13 times an epoch",
                           "7 steps of 2 pictures."})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << outcome.out << part;
  const auto metadata = SafetensorsFile::open(folder / "out/lora.safetensors").metadata();
  EXPECT_EQ(metadata.at("ss_dataset_dirs"),
            R"({"10_cat":{"img_count":1,"n_repeats":10},"3_dog":{"img_count":1,"n_repeats":3}})");
  EXPECT_EQ(metadata.at("ss_num_train_images"), "13");
  EXPECT_NE(metadata.at("ss_bucket_info").find("\"count\":13"), std::string::npos);
  EXPECT_NE(metadata.at("ss_tag_frequency").find("{\"10_cat\":{"), std::string::npos);
}

TEST(Runs, StepsAreSaidInPicturesAndRows) {
  const Folder folder;
  write_plain(folder / "a.jsonl", "{\"text\": \"Once upon a time\"}\n");
  const auto said = [&](const std::string& arguments, const std::string& words) {
    fs::remove_all(folder / "out");
    const Outcome outcome = run_wick(folder.filled(arguments));
    EXPECT_NE(outcome.out.find(words), std::string::npos) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.out.find(": 1 of 2"), std::string::npos) << outcome.out;
  };
  said(kOut + "--batch-size 2 --steps 3", "; 3 steps of 2 pictures.");
  said(kOut + "--batch-size 2 --accumulate 3", "; 1 step of 6 pictures, in 3 batches of 2.");
  said(kOut, "Encoding pictures: 2 of 2\n");
  said(kRuns[1] + "--sequence-length 8", "; 1 step of 1 row.");
}

// Runs a command on a terminal of `columns` columns; returns its output.
std::string on_terminal(const std::string& command, unsigned short columns) {
  winsize size{24, columns, 0, 0};
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  std::string shown;
  char buffer[4096];
  for (ssize_t n; (n = read(terminal, buffer, sizeof buffer)) > 0;) shown.append(buffer, size_t(n));
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << shown;
  return shown;
}

TEST(Runs, ProgressFitsIntoANarrowTerminal) {
  for (const unsigned short columns : {50, 20}) {
    const Folder folder;
    const std::string shown =
        on_terminal("OMP_NUM_THREADS=1 '" WICK_BINARY "' " + folder.filled(kOut + "--steps 30"), columns);
    size_t lines = 0;
    for (size_t begin = 0, end; (end = shown.find("\x1b[K", begin)) != std::string::npos; begin = end + 3, ++lines) {
      const size_t start = shown.rfind('\r', end);
      const std::string line = shown.substr(start + 1, end - start - 1);
      EXPECT_LT(std::ranges::count_if(line, [](char c) { return (uint8_t(c) & 0xc0) != 0x80; }), columns) << line;
    }
    EXPECT_GT(lines, 2u) << shown;
    EXPECT_NE(shown.find("step 30/30"), std::string::npos) << shown;
  }
}

// On a disk of few KiB, where this machine lets us make one.
TEST(Runs, DiskIsLookedAtBeforeItIsFull) {
  const Folder folder;
  const auto on_disk = [&](const std::string& size, const std::string& more) {
    const std::string mount = folder.filled("mkdir -p $T/disk; mount -t tmpfs -o size=" + size + " tmpfs $T/disk");
    return run_wick(folder.filled(kTrain + "--output $T/disk/out " + more),
                    "exec unshare -m sh -c '" + mount + " || exit 99; \"$0\" \"$@\"'");
  };
  const Outcome tiny = on_disk("64k", "--rank 4");
  if (tiny.code == 99 || tiny.err.find("unshare") != std::string::npos) GTEST_SKIP() << "no file system to be had";
  expect_one_line(tiny, {"--output ", "disk/out: ", "are free there, expected at least ", "for a result and ",
                         "for a state to go on from"});
  const Outcome small = on_disk("1500k", "--rank 4 --steps 60 --state-every-minutes 0.001");
  EXPECT_EQ(small.code, 0) << small.err;
  EXPECT_NE(small.out.find("are free in"), std::string::npos) << small.out;
  EXPECT_NE(small.out.find("training goes on, "), std::string::npos) << small.out;
}

}  // namespace
}  // namespace wick
