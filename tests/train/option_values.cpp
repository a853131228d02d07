// Every key and value of other trainers' own presets and files, and what becomes of it here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "io/files.h"
#include "source_dir.h"
#include "wick/train/foreign/option_file.h"
#include "wick/train/foreign/tree.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The least file of each trainer and model. A row of the table is put into it.
struct LeastFile {
  const char* name;
  Trainer trainer;
  const char* text;
};
constexpr LeastFile kLeastFiles[] = {
    {"kohya's scripts, sdxl", Trainer::kohya, R"({"train_data_dir": "d", "resolution": 512})"},
    {"kohya's scripts, sd3", Trainer::kohya,
     R"({"train_data_dir": "d", "resolution": 512, "network_module": "networks.lora_sd3"})"},
    {"kohya's scripts, flux", Trainer::kohya,
     R"({"train_data_dir": "d", "resolution": 512, "network_module": "networks.lora_flux", "model_prediction_type": "raw"})"},
    {"ai-toolkit, sdxl", Trainer::ai_toolkit,
     R"({"type": "sd_trainer", "datasets": [{"folder_path": "d"}], "train": {"noise_scheduler": "ddpm"}, "model": {"arch": "sdxl"}})"},
    {"ai-toolkit, sd3", Trainer::ai_toolkit,
     R"({"type": "sd_trainer", "datasets": [{"folder_path": "d"}], "train": {"noise_scheduler": "flowmatch"}, "model": {"is_v3": true}})"},
    {"ai-toolkit, flux", Trainer::ai_toolkit,
     R"({"type": "sd_trainer", "datasets": [{"folder_path": "d"}], "train": {"noise_scheduler": "flowmatch"}, "model": {"is_flux": true}})"},
    {"OneTrainer, sdxl", Trainer::onetrainer,
     R"({"training_method": "LORA", "model_type": "STABLE_DIFFUSION_XL_10_BASE", "concepts": [{"path": "d"}]})"},
    {"OneTrainer, sd3", Trainer::onetrainer,
     R"({"training_method": "LORA", "model_type": "STABLE_DIFFUSION_3", "concepts": [{"path": "d"}]})"},
    {"OneTrainer, flux", Trainer::onetrainer,
     R"({"training_method": "LORA", "model_type": "FLUX_DEV_1", "concepts": [{"path": "d"}]})"},
    {"musubi-tuner, flux", Trainer::musubi, R"({"dit": "m", "network_module": "networks.lora_flux"})"}};

// "a.b[0].c" as the places in a tree.
Json::json_pointer pointer_of(const std::string& key, bool is_flat) {
  std::string path = "/";
  for (const char c : key)
    if (!is_flat && (c == '.' || c == '['))
      path += '/';
    else if (is_flat || c != ']')
      path += c;
  return Json::json_pointer(path);
}

// `value` is JSON; " where KEY = VALUE" may follow it.
Json file_with(const LeastFile& least, const std::string& key, const std::string& value) {
  static constexpr std::string_view kWhere = " where ";
  if (const size_t where = value.find(kWhere); where != value.npos) {
    const std::string other = value.substr(where + kWhere.size());
    const size_t equals = other.find(" = ");
    Json file = file_with(least, key, value.substr(0, where));
    file[other.substr(0, equals)] = Json::parse(other.substr(equals + 3));
    return file;
  }
  const Json tree = Json::parse(least.text), found = Json::parse(value);
  if (least.trainer != Trainer::ai_toolkit) {
    Json file = tree;
    file[pointer_of(key, least.trainer == Trainer::kohya || least.trainer == Trainer::musubi)] = found;
    return file;
  }
  Json job = {{"job", "extension"}, {"config", {{"name", "x"}, {"process", Json::array({tree})}}}};
  const bool is_outside = key == "job" || key.starts_with("config.") || key.starts_with("meta.");
  Json& part = is_outside ? job : job["config"]["process"][0];
  part[pointer_of(key, false)] = found;
  return job;
}

// What is told of the key, in one line.
std::string told_of(const ForeignConfig& read, const std::string& key) {
  static constexpr const char* kUses[] = {"honoured", "without meaning", "as if it were not there", "refused"};
  const auto found = std::ranges::find(read.keys, key, &KeyReport::key);
  if (found == read.keys.end()) return "is not read";
  return fmt::format("{}{}{}", kUses[size_t(found->use)], found->told.empty() ? "" : ": ", found->told);
}

// tools/interop/option_files.py writes the keys and values, from files that the trainers' own code wrote.
// WICK_WRITE_DOCS=1 in the environment writes anew what becomes of them.
TEST(OptionValues, EachOfTheOriginalFilesIsReadAsTheTableSays) {
  const fs::path table = test::source_dir() / "tests/train/option_values.txt";
  const TemporaryDirectory folder;
  const fs::path file = folder / "file.json", data = folder / "data.toml";
  write_plain(data, "[[datasets]]\nimage_directory = \"d\"\ncaption_extension = \".txt\"\n");
  std::istringstream rows(read_plain(table));
  std::string row, written;
  std::map<Trainer, size_t> counts;
  while (std::getline(rows, row)) {
    const size_t first = row.find(" | "), second = row.find(" | ", first + 3), equals = row.find(" = ", first);
    ASSERT_TRUE(equals < second && second != row.npos) << row;
    const auto least = std::ranges::find(kLeastFiles, row.substr(0, first), &LeastFile::name);
    ASSERT_NE(least, std::end(kLeastFiles)) << row;
    const std::string key = row.substr(first + 3, equals - first - 3);
    Json options = file_with(*least, key, row.substr(equals + 3, second - equals - 3));
    if (least->trainer == Trainer::musubi) options["dataset_config"] = data.string();
    write_plain(file, options.dump());
    const std::string told = told_of(explain_options(file, least->trainer), key);
    if (std::getenv("WICK_WRITE_DOCS"))
      written += row.substr(0, second + 3) + told + "\n";
    else
      EXPECT_EQ(told, row.substr(second + 3)) << row;
    ++counts[least->trainer];
  }
  if (!written.empty()) write_plain(table, written);
  for (const Trainer trainer : {Trainer::kohya, Trainer::ai_toolkit, Trainer::onetrainer})
    EXPECT_GT(counts[trainer], 80u) << "rows of one trainer";
  EXPECT_GT(counts[Trainer::musubi], 10u) << "they have FLUX.1 alone";
}

}  // namespace
}  // namespace wick
