// Walks all tables that map names to settings, kinds, models or variables. A row with an unknown target fails here, not
// in a user's run.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <span>
#include <sstream>

#include "cli/program.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/pipelines/adapter_file.h"
#include "wick/pipelines/diffusion.h"
#include "wick/pipelines/known_models.h"
#include "wick/pipelines/model_defaults.h"
#include "wick/train/config.h"
#include "wick/train/dataset_file.h"
#include "wick/train/foreign/ai_toolkit.h"
#include "wick/train/foreign/kohya.h"
#include "wick/train/foreign/onetrainer.h"
#include "wick/train/optimizer.h"
#include "wick/train/presets.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// Settings, or an Error of one line that is the user's to mend.
template <class Action>
void expect_read_or_refused(const Action& action) {
  try {
    action();
  } catch (const Error& e) {
    const std::string message = e.what();
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    EXPECT_EQ(message.find("a fault of Wick"), message.npos) << message;
  }
}

// Values in TOML's spelling, of every type and size.
const char* const kValues[] = {"true",
                               "false",
                               "0",
                               "1",
                               "-1",
                               "512",
                               "1000000000",
                               "9223372036854775807",
                               "0.5",
                               "1e308",
                               "inf",
                               "nan",
                               "''",
                               "'x'",
                               "'1'",
                               "'None'",
                               "[]",
                               "[1, 2]",
                               "['a=1', 'b']",
                               "[[1], ['x']]",
                               "{x = 1}",
                               "1979-05-27"};

TEST(Tables, KohyasKeysAreRead) {
  const TemporaryDirectory folder;
  const fs::path file = folder / "k.toml";
  std::set<std::string_view> seen;
  for (const ForeignKey& row : kohya_keys()) {
    const std::string_view key = row.key;
    SCOPED_TRACE(key);
    EXPECT_TRUE(seen.insert(key).second) << "twice";
    if (row.kind == ForeignKey::Kind::setting) {
      EXPECT_TRUE(find_option(row.text)) << "no setting has this name";
    }
    for (const char* family : {"", "ae = 'ae'\n", "clip_g = 'g'\n"})
      for (const char* value : kValues) {
        SCOPED_TRACE(value);
        std::string text = fmt::format("{} = {}\n", key, value);
        for (const std::string& line :
             {std::string("train_data_dir = 'd'\n"), std::string("resolution = 64\n"), std::string(family)})
          if (!line.starts_with(std::string(key) + " ")) text += line;
        write_plain(file, text);
        expect_read_or_refused([&] {
          ForeignConfig read = explain_kohya(file);
          EXPECT_LE(std::ranges::count(read.keys, key, &KeyReport::key), 1);
          read.check();
          resolve(read.config, {});
          to_toml(read.config);
        });
      }
  }
}

// "datasets[0].resolution" as {"datasets": [{"resolution": VALUE}]}: YAML and JSON.
std::string at_path(std::string path, const std::string& value) {
  std::string begin, end;
  for (size_t dot = path.find('.'); dot != path.npos; dot = path.find('.')) {
    const bool is_list = path.substr(0, dot).ends_with("[0]");
    begin += fmt::format("\"{}\": {}", path.substr(0, dot - (is_list ? 3 : 0)), is_list ? "[{" : "{");
    end = (is_list ? "}]" : "}") + end;
    path.erase(0, dot + 1);
  }
  return fmt::format("{}\"{}\": {}{}", begin, path, value, end);
}

// All rows name settings that there are, and every value is read or refused; `around` has a file's other options.
void walk_table(std::span<const ForeignKey> rows, Trainer trainer, const fs::path& file, const char* around) {
  std::set<std::string_view> seen;
  for (const ForeignKey& row : rows) {
    SCOPED_TRACE(row.key);
    EXPECT_TRUE(seen.insert(row.key).second) << "twice";
    if (row.kind == ForeignKey::Kind::setting) {
      EXPECT_TRUE(find_option(row.text)) << "no setting has this name";
    }
    for (const char* value :
         {"true", "0", "-1", "512", "1e308", "\"\"", "\"x\"", "[]", "[1, 2]", "[[1], [\"x\"]]", "{\"x\": 1}", "null"}) {
      SCOPED_TRACE(value);
      write_plain(file, fmt::format(fmt::runtime(around), at_path(std::string(row.key), value)));
      expect_read_or_refused([&] {
        ForeignConfig read = explain_options(file, trainer);
        read.check();
        resolve(read.config, {});
        to_toml(read.config);
      });
    }
  }
}

TEST(Tables, AiToolkitsKeysAreRead) {
  const TemporaryDirectory folder;
  walk_table(ai_toolkit_keys(), Trainer::ai_toolkit, folder / "job.yaml",
             "job: extension\nconfig: {{process: [{{{}}}]}}\n");
}

TEST(Tables, OneTrainersKeysAreRead) {
  const TemporaryDirectory folder;
  walk_table(onetrainer_keys(), Trainer::onetrainer, folder / "config.json", "{{{}}}");
}

// kohya's GUI writes these keys into every option file for FLUX.
TEST(Tables, KohyasKeysOfT5AreSettings) {
  const TemporaryDirectory folder;
  write_plain(folder / "k.toml",
              "train_data_dir = 'd'\nresolution = 64\nae = 'ae'\napply_t5_attn_mask = true\n"
              "t5xxl_max_token_length = 512\nmodel_prediction_type = 'raw'\n");
  const ForeignConfig read = read_kohya_config(folder / "k.toml");
  EXPECT_TRUE(read.config.t5_mask);
  EXPECT_EQ(read.config.t5_tokens, 512);
}

TEST(Tables, KeysOfDataSetsAreRead) {
  const TemporaryDirectory folder;
  const fs::path file = folder / "d.toml";
  const LatentSpace space{.channels = 4, .factor = 8, .side_step = 8, .bucket_step = 32, .native = 128};
  for (const std::string& key : dataset_keys())
    for (const char* value : kValues) {
      const std::string row = fmt::format("{} = {}\n", key, value);
      for (const std::string& text : {"[general]\n" + row + "[[datasets]]\n[[datasets.subsets]]\nimage_dir = 'x'\n",
                                      "[[datasets]]\n" + row + "[[datasets.subsets]]\nimage_dir = 'x'\n",
                                      "[[datasets]]\n[[datasets.subsets]]\nimage_dir = 'x'\n" + row}) {
        SCOPED_TRACE(text);
        write_plain(file, text);
        expect_read_or_refused([&] { read_dataset_file(file, {}, space); });
      }
    }
}

TEST(Tables, PresetsAreSettings) {
  for (const Preset& preset : presets()) {
    SCOPED_TRACE(preset.name);
    std::istringstream words{std::string(preset.settings)};
    for (std::string word; words >> word;) EXPECT_TRUE(find_option(word.substr(0, word.find('=')))) << word;
    TrainConfig config;
    EXPECT_NO_THROW(apply_preset(config, std::string(preset.name)));
  }
}

TEST(Tables, SettingsAreReadFromAnyValue) {
  const TemporaryDirectory folder;
  const fs::path file = folder / "c.toml";
  std::set<std::string_view> seen;
  for (const TrainOption& option : train_options()) {
    SCOPED_TRACE(option.key);
    EXPECT_TRUE(seen.insert(option.key).second) << "twice";
    EXPECT_EQ(find_option(option.key), &option);
    EXPECT_FALSE(option.help.empty() || option.type().empty());
    for (const char* value : kValues) {
      SCOPED_TRACE(value);
      write_plain(file, fmt::format("{} = {}\n", option.key, value));
      expect_read_or_refused([&] {
        TrainConfig config;
        read_toml(config, file);
        resolve(config, {});
        to_toml(config);
      });
    }
  }
  for (const TrainAlias& alias : train_aliases()) {
    EXPECT_TRUE(seen.insert(alias.spelling).second) << alias.spelling << ": twice, or a setting's own name";
    EXPECT_TRUE(find_option(alias.spelling)) << alias.spelling;
  }
}

// A setting with a choice writes each value by the name that it was read from.
TEST(Tables, ChoicesOfSettings) {
  size_t choices = 0;
  for (const TrainOption& option : train_options()) {
    const std::string_view type = option.type();
    if (type.find('|') == type.npos || type.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ,") != type.npos) continue;
    for (const std::string_view name : split_names(type)) {
      TrainConfig config;
      option.set(config, {std::string(name)});
      EXPECT_EQ(option.toml(config), fmt::format("\"{}\"", name)) << option.key;
      ++choices;
    }
  }
  EXPECT_GT(choices, 40u);
}

TEST(Tables, OptimizersHaveARate) {
  for (const std::string_view name : split_names(names_of(OptimizerKind{}))) {
    TrainConfig config;
    option_named("optimizer").set(config, {std::string(name)});
    EXPECT_GT(default_lr(config.optimizer), 0) << name;
    resolve(config, {});
    EXPECT_GT(config.lr.value, 0) << name;
  }
}

TEST(Tables, KindsOfAdaptersKnowTheirKeys) {
  std::set<std::string_view> names;
  for (const AdapterAlgorithm* algorithm : adapter_algorithms()) {
    SCOPED_TRACE(algorithm->name());
    EXPECT_FALSE(algorithm->factors().empty());
    names.insert(algorithm->name());
    for (const AdapterAlgorithm::Factor& factor : algorithm->factors()) {
      EXPECT_FALSE(factor.suffixes.empty()) << factor.name;
      for (const std::string_view suffix : factor.suffixes) {
        const std::string key = "module" + std::string(suffix);
        // The other keys of a module decide some kinds; other kinds need the key to be alone.
        auto found = parse_adapter_key(key, [&](const std::string& other) { return other == key; });
        if (!found) found = parse_adapter_key(key, [](const std::string&) { return true; });
        ASSERT_TRUE(found) << key;
        EXPECT_EQ(found->module, "module") << key;
        EXPECT_TRUE(found->algorithm) << key;
      }
    }
  }
}

TEST(Tables, FormatsOfAdapters) {
  for (size_t i = 0; i < adapter_format_names().size(); ++i) {
    const auto format = parse_adapter_format(adapter_format_names()[i]);
    ASSERT_TRUE(format) << adapter_format_names()[i];
    EXPECT_EQ(size_t(*format), i);
  }
}

TEST(Tables, Samplers) {
  std::set<SamplerKind> kinds;
  for (const auto& [name, kind] : kSamplers) {
    EXPECT_EQ(name_of(kind), name);
    EXPECT_TRUE(kinds.insert(kind).second) << name;
  }
  for (int kind = 0; kind <= int(SamplerKind::lcm); ++kind) EXPECT_TRUE(kinds.contains(SamplerKind(kind))) << kind;
}

TEST(Tables, KnownModelsHaveDefaultsAndSizes) {
  for (const KnownModel& known : known_models()) {
    SCOPED_TRACE(known.name);
    EXPECT_EQ(find_known(known.name), &known);
    if (!known.repository.empty()) {
      EXPECT_EQ(find_known(known.repository), &known);
    }
    if (known.configs.empty()) continue;
    EXPECT_NO_THROW(defaults_of(known.name));
    EXPECT_NO_THROW(open_diffusion(known.without_files()));
  }
  for (const ModelDefaults& row : model_defaults()) EXPECT_TRUE(find_known(std::string(row.model))) << row.model;
}

// Names that the sources ask the environment for, as texts alone or by way of a helper.
std::set<std::string> variables_in_sources() {
  std::set<std::string> all;
  static const std::regex kName("\"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|RANK|COLUMNS|LANG)\"");
  for (const char* room : {"wick", "apps"})
    for (const auto& entry : fs::recursive_directory_iterator(test::source_dir() / room)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cpp" && extension != ".h" && extension != ".cu") continue;
      const std::string text = read_plain(entry.path());
      if (text.find("getenv") == text.npos && entry.path().filename() != "environment.cpp") continue;
      for (std::sregex_iterator match(text.begin(), text.end(), kName), end; match != end; ++match)
        all.insert((*match)[1]);
    }
  return all;
}

// The names in the tables of docs/environment.md, or in their first column alone under these headings.
std::set<std::string> documented_variables(const std::set<std::string>& headings) {
  std::set<std::string> all;
  std::ifstream lines(test::source_dir() / "docs/environment.md");
  static const std::regex kName("`([A-Z][A-Z0-9_]+)`");
  bool is_wanted = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## ")) is_wanted = headings.empty() || headings.contains(line.substr(3));
    if (!is_wanted || !line.starts_with("| `")) continue;
    const std::string names = headings.empty() ? line : line.substr(0, line.find('|', 1));
    for (std::sregex_iterator match(names.begin(), names.end(), kName), end; match != end; ++match)
      all.insert((*match)[1]);
  }
  return all;
}

TEST(Tables, EnvironmentIsDocumentedAndRead) {
  const std::set<std::string> in_sources = variables_in_sources(), documented = documented_variables({});
  // Those of other programs by which Wick finds its way, and words that are no variables.
  static const std::set<std::string> kOthers = {"NCCL_P2P_DISABLE", "HOME"};
  EXPECT_GT(in_sources.size(), 25u);
  for (const std::string& name : in_sources)
    EXPECT_TRUE(documented.contains(name) || kOthers.contains(name)) << name << " is not in docs/environment.md";
  const std::set<std::string> of_program = documented_variables({"The program", "Ranks", "CUDA"});
  EXPECT_GT(of_program.size(), 25u);
  static const std::set<std::string> kOfTheLibrary = {"LANG", "LC_ALL", "LC_CTYPE"};  // setlocale reads them
  for (const std::string& name : of_program)
    EXPECT_TRUE(in_sources.contains(name) || kOfTheLibrary.contains(name)) << name << " is read nowhere";
}

}  // namespace
}  // namespace wick
