// The files of a data set and their hashes, kept beside a run's states: if the data changed, a resumed run can name the
// files that did. And how reading them is told: progress, and all faults at once.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wick/core/error.h"
#include "wick/io/descriptor.h"

namespace wick {

// Told how far the reading or the encoding of data is.
using Progress = std::function<void(const std::string& what, size_t done, size_t total)>;

struct DataFile {
  std::string name;  // within the data set
  std::string sha256;
};

// One line per file, as sha256sum (GNU coreutils) writes and checks them: "HASH  NAME".
void write_data_files(const std::filesystem::path& list, const std::vector<DataFile>& files);
// Empty where there is no such list.
std::vector<DataFile> read_data_files(const std::filesystem::path& list);

// "0002.txt changed, 0003.png is new, 0007.png is gone and 4 others": the differences to `before`.
std::string changes_of(const std::vector<DataFile>& before, const std::vector<DataFile>& now);

// The kind of a file that no data set is made of, by its first bytes: "a gzip archive; unpack it first". Empty for one
// that may be text.
std::string foreign_format(std::string_view start);
constexpr size_t kForeignBytes = 8;  // enough to tell

// Faults of data files: all of them are found before they are reported, in one line.
class Faults {
 public:
  // Runs the action and returns whether it succeeded; an Error is kept for check().
  template <class Action>
  bool collect(Action&& action) {
    try {
      std::forward<Action>(action)();
      return true;
    } catch (const OutOfMemory&) {
      throw;
    } catch (const TooManyFiles&) {
      throw;
    } catch (const Error& e) {
      add(e.what());
      return false;
    }
  }
  bool empty() const { return count_ == 0; }
  // Throws Error if there was a fault: it alone, or "`source`: 12 faults: (1) a.png: … (2) b.txt: … and 10 others". The
  // prefix `source` is left out of them.
  void check(const std::string& source) const;

 private:
  void add(std::string fault);

  std::vector<std::string> first_;
  size_t count_ = 0;
};

}  // namespace wick
