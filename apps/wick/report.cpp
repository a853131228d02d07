#include "report.h"

#include <algorithm>
#include <cstdio>

#include "wick/io/quote.h"

namespace wick::cli {

int report(int code, std::string message) {
  while (!message.empty() && message.back() == '\n') message.pop_back();
  std::replace_if(
      message.begin(), message.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  std::fputs(("wick: " + printable(message) + "\n").c_str(), stderr);  // its failure cannot be reported
  return code;
}

}  // namespace wick::cli
