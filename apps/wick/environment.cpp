#include "environment.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "wick/core/error.h"
#include "wick/ranks/launch.h"
#include "wick/train/fault.h"

namespace wick::cli {
namespace {

constexpr int64_t kAny = std::numeric_limits<int32_t>::max();

// One of a few names: those of docs/environment.md.
struct Choice {
  const char *name, *first, *second;
};
constexpr Choice kChoices[] = {
    {"WICK_CPU", "avx2", "portable"}, {"WICK_CUDA_POOL", "off", nullptr}, {"WICK_CUDNN", "off", nullptr}};

struct Number {
  const char* name;
  int64_t min, max;
  bool is_list = false;  // of OpenMP's: one number for each level of nesting
};
constexpr Number kNumbers[] = {{"WICK_THREADS", 1, kAny},
                               {"OMP_NUM_THREADS", 1, kAny, /*is_list=*/true},
                               {"WICK_CUDA_CAPABILITY", 10, 999},
                               {"WICK_CUBLASLT_ALIGNMENT", 1, 256}};

bool is_number(std::string_view text, const Number& number) {
  int64_t value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && value >= number.min && value <= number.max;
}

void check_choice(const Choice& choice, std::string_view found) {
  const bool fits = found == choice.first || (choice.second && found == choice.second);
  check_usage(fits, "{}: expected {}{}{}, found '{}'; correct the environment's variable or unset it", choice.name,
              choice.first, choice.second ? " or " : "", choice.second ? choice.second : "", found);
}

void check_number(const Number& number, std::string_view found) {
  bool fits = true;
  for (std::string_view rest = found; fits;) {
    const size_t comma = number.is_list ? rest.find(',') : rest.npos;
    fits = is_number(rest.substr(0, comma), number);
    if (comma == rest.npos) break;
    rest.remove_prefix(comma + 1);
  }
  check_usage(fits, "{}: expected an integer from {} to {}, found '{}'; correct the environment's variable or unset it",
              number.name, number.min, number.max, found);
}

}  // namespace

void check_environment() {
  for (const Choice& choice : kChoices)
    if (const char* found = std::getenv(choice.name)) check_choice(choice, found);
  for (const Number& number : kNumbers)
    if (const char* found = std::getenv(number.name)) check_number(number, found);
  check_rank_variables();
  Fault::from_environment();  // is understood
}

}  // namespace wick::cli
