// A file of adapters, opened: where the factors of each of its modules stand, and what they are once a layer asks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "wick/io/safetensors.h"
#include "wick/nn/adapter.h"
#include "wick/nn/peft.h"

namespace wick {

// The tensors of a safetensors file, or those that were read of another one (LoraFile::tensors).
class AdapterTensors {
 public:
  explicit AdapterTensors(SafetensorsFile file) : file_(std::move(file)) {}
  explicit AdapterTensors(const LoraFile& read);

  const std::filesystem::path& path() const { return file_ ? file_->path() : path_; }
  const std::map<std::string, TensorInfo>& tensors() const { return file_ ? file_->tensors() : infos_; }
  bool has(const std::string& name) const { return tensors().contains(name); }
  std::map<std::string, std::string> metadata() const;
  Tensor load(const std::string& name) const { return file_ ? file_->load(name) : read_->at(name); }
  Tensor load_numbers(const std::string& name) const;  // f32, on the host
  const SafetensorsFile* file() const { return file_ ? &*file_ : nullptr; }

 private:
  std::optional<SafetensorsFile> file_;
  std::filesystem::path path_;
  std::shared_ptr<const std::map<std::string, Tensor>> read_;
  std::map<std::string, TensorInfo> infos_;
};

class AdapterSource {
 public:
  static AdapterSource open(const LoraFile& file, bool trainable);

  std::string name() const { return file_.path().string(); }
  const LoraFile& given() const { return given_; }
  bool is_trainable() const { return trainable_; }
  size_t module_count() const { return module_names().size(); }

  // The names among these that the file has. Throws Error where two of them stand for the same rows.
  std::vector<const ModuleName*> find(const std::vector<ModuleName>& names);
  // Whether one of these has an algorithm that does not stack.
  bool stands_apart(const std::vector<ModuleName>& names) const;
  // The factors of a module that find() found, checked against the site: one with an algorithm, or a difference, or the
  // one and the other, in the order in which they apply.
  std::vector<AdapterModule> read(const std::string& written_name, const ModuleName& found, const LoraSite& site) const;
  // Those of the embedding that are the head's too, where it is tied to that: PEFT's trained tokens.
  std::vector<AdapterModule> read_tied(const std::string& written_name, const LoraSite& head) const;
  // The change of a norm's vector of so many numbers, times the strength, of a module that find() found; empty where
  // the file has none.
  Tensor read_vector(const ModuleName& found, const std::string& path, bool is_bias, int64_t count) const;
  // For modules that the file does not change: throws Error if it replaces their matrix by another one.
  void check_base(const std::vector<ModuleName>& names, const LoraSite& site) const;
  // Throws Error if a module was not asked for that is not of the components whose names start with `elsewhere`.
  void check_complete(const std::vector<std::string>& elsewhere) const;
  // Remarks: tensors that are left aside, and slow work.
  std::vector<std::string> notes() const;
  // The words that it teaches, and the vectors [n, dim] of one for an encoder, f32 on the host; empty where it has
  // none.
  std::vector<std::string> words() const;
  Tensor word_vectors(const std::string& word, const std::string& encoder) const;
  // All bundled embeddings, by key, with the file's values and dtypes: a run that trains the file further saves them
  // again.
  std::map<std::string, Tensor> embeddings() const;

 private:
  struct Entry {
    const AdapterAlgorithm* algorithm = nullptr;
    std::vector<std::string> keys = {};  // of its factors, in the algorithm's order; empty where there is none
    std::string alpha = {}, scalar = {}, magnitude = {};  // their keys
    mutable bool used = false;
    mutable std::set<std::string> vectors = {};  // keys of a norm that were asked for
  };
  using Entries = std::map<std::string, Entry>;  // by base name
  struct Base {  // the matrix of a module as PEFT had it, which it puts in the place of the model's
    std::string key;
    mutable bool used = false;
  };

  AdapterSource(AdapterTensors file, LoraFile given, bool trainable, LoraSettings settings)
      : file_(std::move(file)), given_(std::move(given)), trainable_(trainable), settings_(std::move(settings)) {}
  std::string in_words() const;
  void index();
  void add(const std::string& key);
  void add_embedding(const std::string& key);
  bool add_saved(const std::string& key);
  std::set<std::string> module_names() const;
  std::vector<Entries::const_iterator> entries_of(const std::string& module) const;
  bool tells_its_scale() const;
  void check_setting(const std::string& base, const Entry& entry, bool whole) const;
  void check_layer(const Entry& entry, const LoraTarget& target) const;
  void check_vectors(const Entry& entry) const;
  void read_scale(AdapterModule& module, const std::string& name_in_file, const Entry& entry) const;
  AdapterModule read_entry(const std::string& written_name, const ModuleName& found, const LoraSite& site,
                           const Entry& entry) const;
  AdapterModule read_token_rows(const std::string& written_name, const std::string& name_in_file, const LoraSite& site,
                                const Entry& entry) const;
  RotationSettings rotation_of(const std::string& name_in_file, const Entry& entry) const;
  static bool has_bias(const Entry& entry);
  static std::string first_key(const Entry& entry);
  void check_factors(const std::string& base, const Entry& entry) const;
  std::vector<AdapterFactor> read_factors(const Entry& entry) const;
  float alpha_of(const std::string& name_in_file, const Entry& entry, int64_t rank) const;
  float number(const std::string& key) const;
  bool is_infinite(const std::string& key) const;
  void take_part_out(AdapterModule& module, TakenFromBase taken, const std::string& name_in_file,
                     const LoraSite& site) const;
  void make_trainable(AdapterModule& module) const;
  Tensor read_finite(const std::string& key) const;

  AdapterTensors file_;
  LoraFile given_;
  bool trainable_;
  LoraSettings settings_;
  Entries entries_ = {};
  Entries differences_ = {};                // of the full algorithm, beside which a module may have another one
  std::map<std::string, Base> bases_ = {};  // by base name
  std::map<std::string, std::map<std::string, std::string>> words_ = {};  // keys of embeddings, by word and encoder
  std::vector<std::string> other_embeddings_ = {};                        // keys of those that are not applied
  const char* model_ = nullptr;                                           // model_of_lora()
};

}  // namespace wick
