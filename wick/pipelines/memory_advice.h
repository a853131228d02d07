// What to change where a command does not fit into memory: changes that are tried before they are named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace wick {

// Flags, and all that the command would take with them.
struct Fitting {
  std::string flags;  // "--batch-size 1"
  size_t total;
};
// A change of flags; none where there is nothing to change, or where it does not fit. One that throws Error cannot be
// made.
using MemoryChange = std::function<std::optional<Fitting>()>;

// Of the memory that is free, what advice may take: a tenth is left for what is not planned, and for other programs.
inline size_t room_to_advise(size_t free) { return free - free / 10; }

// `flags` if that takes no more than `room`.
std::optional<Fitting> if_fits(std::string flags, size_t total, size_t room);

// The first of several changes that fits.
MemoryChange first_that_fits(std::vector<MemoryChange> changes);

// "--bf16 would need 1.2 GiB, --batch-size 1 0.8 GiB": of the changes those that fit by themselves, or the first of
// `together` that does. Where none does, a smaller model is expected.
std::string memory_advice(const std::vector<MemoryChange>& alone, const std::vector<MemoryChange>& together);

// The largest number in [low, high] that fits, where smaller ones do if a larger one does; 0 if none fits.
int64_t most_that_fits(int64_t low, int64_t high, const std::function<bool(int64_t)>& fits);

}  // namespace wick
