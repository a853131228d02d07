#include "wick/train/data_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "wick/io/count.h"
#include "wick/io/file.h"

namespace wick {

void write_data_files(const std::filesystem::path& list, const std::vector<DataFile>& files) {
  std::string text;
  for (const DataFile& file : files) text += file.sha256 + "  " + file.name + "\n";
  write_file_atomically(list, text);
}

std::vector<DataFile> read_data_files(const std::filesystem::path& list) {
  constexpr size_t kHashDigits = 64, kGap = 2;
  std::vector<DataFile> files;
  std::error_code ignored;
  if (!std::filesystem::exists(list, ignored)) return files;
  std::istringstream lines(read_file(list));
  for (std::string line; std::getline(lines, line);)
    if (line.size() > kHashDigits + kGap)
      files.push_back({line.substr(kHashDigits + kGap), line.substr(0, kHashDigits)});
  return files;
}

std::string changes_of(const std::vector<DataFile>& before, const std::vector<DataFile>& now) {
  constexpr size_t kTold = 5;
  std::map<std::string, std::pair<std::string, std::string>> both;  // hashes by name, empty where there is none
  for (const DataFile& file : before) both[file.name].first = file.sha256;
  for (const DataFile& file : now) both[file.name].second = file.sha256;
  std::vector<std::string> changes;
  for (const auto& [name, hashes] : both) {
    const auto& [old_hash, new_hash] = hashes;
    if (old_hash == new_hash) continue;
    changes.push_back(name + (old_hash.empty() ? " is new" : new_hash.empty() ? " is gone" : " changed"));
  }
  if (changes.empty()) return "the same files in another order";
  const size_t told = std::min(changes.size(), kTold);
  std::string text = fmt::format("{}", fmt::join(changes.begin(), changes.begin() + long(told), ", "));
  if (told < changes.size()) text += fmt::format(" and {}", count_of(changes.size() - told, "other"));
  return text;
}

std::string foreign_format(std::string_view start) {
  using namespace std::string_view_literals;
  static constexpr std::pair<std::string_view, const char*> kFormats[] = {
      {"\x1f\x8b"sv, "a gzip archive; unpack it first (gunzip)"},
      {"PK\x03\x04"sv, "a ZIP archive; unpack it first (unzip)"},
      {"BZh"sv, "a bzip2 archive; unpack it first (bunzip2)"},
      {"\x28\xb5\x2f\xfd"sv, "a Zstandard archive; unpack it first (unzstd)"},
      {"\xfd"
       "7zXZ"sv,
       "an xz archive; unpack it first (unxz)"},
      {"7z\xbc\xaf"sv, "a 7-Zip archive; unpack it first"},
      {"PAR1"sv, "a Parquet file; convert it to JSON lines"},
      {"ARROW1"sv, "an Arrow file; convert it to JSON lines"},
      {"SQLite"sv, "an SQLite database; convert it to JSON lines"},
      {"\xff\xfe"sv, "text in UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"},
      {"\xfe\xff"sv, "text in UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"}};
  for (const auto& [bytes, what] : kFormats)
    if (start.starts_with(bytes)) return what;
  return {};
}

void Faults::add(std::string fault) {
  constexpr size_t kTold = 100;
  ++count_;
  if (first_.size() < kTold) first_.push_back(std::move(fault));
}

void Faults::check(const std::string& source) const {
  if (count_ == 0) return;
  wick::check(count_ > 1, "{}", first_.front());
  std::string text;
  for (size_t i = 0; i < first_.size(); ++i) {
    std::string fault = first_[i];
    for (const char* separator : {"/", ": "})
      if (fault.starts_with(source + separator)) fault.erase(0, (source + separator).size());
    text += fmt::format(" ({}) {}", i + 1, fault);
  }
  if (count_ > first_.size()) text += fmt::format(" and {}", count_of(count_ - first_.size(), "other"));
  fail("{}: {}:{}", source, count_of(count_, "fault"), text);
}

}  // namespace wick
