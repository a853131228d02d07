// How option files of other trainers are read: a table says what becomes of each key that stands alone, and a reader
// settles the keys that belong together. Whatever is refused is collected, so that all keys are told of at once.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wick/train/dataset_file.h"
#include "wick/train/foreign/option_file.h"
#include "wick/train/foreign/tree.h"

namespace wick {

// A row of a trainer's table.
struct ForeignKey {
  enum class Kind { setting, together, idle, refused };

  std::string_view key;
  Kind kind = Kind::together;
  std::string_view text = {};  // the setting's name here; why the key is idle; what there is instead of a refused one
  std::string_view neutral = {};  // the value that asks for nothing, as false does
  bool zero_is_none = false;

  static constexpr ForeignKey same(std::string_view key) { return {key, Kind::setting, key}; }
  static constexpr ForeignKey setting(std::string_view key, std::string_view name) {
    return {key, Kind::setting, name};
  }
  static constexpr ForeignKey unless_zero(std::string_view key) { return {key, Kind::setting, key, {}, true}; }
  static constexpr ForeignKey together(std::string_view key) { return {key}; }
  static constexpr ForeignKey idle(std::string_view key, std::string_view why) { return {key, Kind::idle, why}; }
  static constexpr ForeignKey refused(std::string_view key, std::string_view neutral, std::string_view instead) {
    return {key, Kind::refused, instead, neutral};
  }
};

// Why keys that many programs have mean nothing here.
inline constexpr std::string_view kOwnLogs = "a run writes TensorBoard's files and metrics.jsonl",
                                  kOwnLoading = "Wick reads and moves data in its own way",
                                  kNoUpload = "Wick uploads nothing", kFused = "attention is always fused",
                                  kCompiled = "kernels are compiled ahead", kOwnState = "--resume goes on with any run";

class ForeignReader {
 protected:
  // What ends a part of the reading; attempt() takes it down.
  struct Refusal {
    std::string key, why;
  };

  // `program` is in the singular or plural of `has`: "kohya's scripts have".
  ForeignReader(std::string file, std::string program, std::span<const ForeignKey> table);

  // A key of the file. One that is there without a value, or with None or "", is as if it were not there.
  void add(const std::string& key, const nlohmann::ordered_json& value);
  // Does what the table says of each key; those that it lacks mean nothing, as to the program itself.
  void read_table();
  void drop(const std::string& key, std::string why);  // means nothing here

  const std::string& file() const { return read_.file; }
  std::vector<std::string> keys() const;  // of the file, in its order
  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }
  const std::vector<std::string>& words(std::string_view key) const { return values_.find(key)->second; }
  std::string text(std::string_view key, std::string_view otherwise) const;
  double number(std::string_view key, double otherwise) const;
  bool is_set(std::string_view key, bool otherwise = false) const;

  // Sets what a flag would; `part` names a part of the key's value in messages.
  void set(std::string_view setting, const std::vector<std::string>& to, std::string_view key,
           std::string_view part = {});
  void set(std::string_view setting, const std::string& to, std::string_view key, std::string_view part = {}) {
    set(setting, std::vector<std::string>{to}, key, part);
  }
  void claim(std::string_view key, std::string_view setting);  // the key's value decides the setting
  [[noreturn]] static void refuse(std::string_view key, std::string why);
  [[noreturn]] static void refuse_value(std::string_view key, std::string_view expected, std::string_view found);
  void is_for(std::string_view family, std::string_view key) { read_.family = family, read_.family_key = key; }
  void remark(std::string sentence) { read_.remarks.push_back(std::move(sentence)); }

  template <class Part>
  void attempt(Part&& part) {
    try {
      part();
    } catch (const Refusal& refusal) {
      take_down(refusal);
    }
  }
  // Folders of pictures, in the order of a file's list. What the keys of "list[N]." set is the settings of the folder
  // N.
  void begin_folders(size_t count) { folders_.resize(count); }
  std::vector<PictureSection>& folders() { return folders_; }
  // Gives each folder its settings on top of the file's. One alone is the run's data set; several become tables.
  void settle_folders(std::string_view list);
  ForeignConfig finish();

 private:
  TrainConfig& settings_of(std::string_view key);
  KeyReport* report_of(std::string_view key);
  void read_key(KeyReport& report, const ForeignKey& row);
  void take_down(const Refusal& refusal);

  std::span<const ForeignKey> table_;
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
  std::map<std::string, std::vector<std::string>, std::less<>> claims_;  // settings, by key
  std::vector<PictureSection> folders_;
  ForeignConfig read_;

 protected:
  TrainConfig& config_ = read_.config;
};

// Not of 1e400 or of "1e-4 ".
std::optional<double> number_of(std::string_view text);

}  // namespace wick
