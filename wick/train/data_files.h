// The files of a data set and their hashes, kept beside a run's states: if the data changed, a resumed run can name the
// files that did.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

// Told how far the reading of data is.
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

}  // namespace wick
