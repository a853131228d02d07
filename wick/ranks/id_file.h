// The file by which rank 0 tells all other ranks where it listens, if no address is known before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace wick {

// Rank 0's: is there for as long as this is.
class IdFile {
 public:
  IdFile(std::filesystem::path path, int port);  // throws Error if the file cannot be written
  ~IdFile();                                     // removes it, unless another run has replaced it
  IdFile(const IdFile&) = delete;
  IdFile& operator=(const IdFile&) = delete;

  uint64_t run() const { return run_; }  // a random number, by which ranks that found an older file notice it

 private:
  std::filesystem::path path_;
  uint64_t run_;
  std::string text_;
};

struct Announcement {
  struct Place {
    std::string host;
    int port = 0;
  };
  uint64_t run = 0;
  std::vector<Place> places;  // ways to one machine: its name may be unknown elsewhere, its addresses out of reach
};

// Throws Error if the file is missing or is none of these.
Announcement read_id_file(const std::filesystem::path& path);

}  // namespace wick
