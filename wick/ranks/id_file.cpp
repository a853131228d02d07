#include "wick/ranks/id_file.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <random>
#include <sstream>
#include <system_error>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/ranks/socket.h"

namespace wick {
namespace {

constexpr std::string_view kTitle = "wick ranks";

// Those by which other machines may know this one. Addresses of a link (fe80::) mean nothing without its name.
std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* at = all; at; at = at->ifa_next) {
    if (!at->ifa_addr || (at->ifa_flags & IFF_LOOPBACK) || !(at->ifa_flags & IFF_UP)) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const auto* ipv6 = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr);
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ipv6->sin6_addr)) continue;
    char text[NI_MAXHOST];
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (::getnameinfo(at->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) found.emplace_back(text);
  }
  ::freeifaddrs(all);
  return found;
}

std::string announcement(uint64_t run, int port) {
  std::string text = fmt::format("{} {:016x}\n", kTitle, run) + host_and_port(host_name(), port) + "\n";
  for (const std::string& address : own_addresses()) text += host_and_port(address, port) + "\n";
  return text + host_and_port("127.0.0.1", port) + "\n";
}

uint64_t random_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// False if the text is no "host:port".
bool read_place(const std::string& text, Announcement::Place* place) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos || colon == 0) return false;
  place->host = text.substr(0, colon);
  if (place->host.size() > 2 && place->host.front() == '[' && place->host.back() == ']')
    place->host = place->host.substr(1, place->host.size() - 2);
  const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), place->port);
  return error == std::errc() && end == text.data() + text.size() && place->port > 0 && place->port <= 65535;
}

}  // namespace

IdFile::IdFile(std::filesystem::path path, int port)
    : path_(std::move(path)), run_(random_number()), text_(announcement(run_, port)) {
  write_file_atomically(path_, text_);
}

IdFile::~IdFile() {
  try {
    if (read_file(path_, 1 << 16) != text_) return;
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  } catch (const std::exception&) {  // it is gone, or another one's
  }
}

Announcement read_id_file(const std::filesystem::path& path) {
  Announcement found;
  std::istringstream lines(read_file(path, 1 << 16));
  std::string line;
  std::getline(lines, line);
  bool is_one = line.size() == kTitle.size() + 17 && line.starts_with(kTitle);
  if (is_one) {
    const char* end = line.data() + line.size();
    is_one = std::from_chars(end - 16, end, found.run, 16).ptr == end;
  }
  while (is_one && std::getline(lines, line)) is_one = read_place(line, &found.places.emplace_back());
  check(is_one && !found.places.empty(), "{}: expected the file by which rank 0 tells where it listens, found another",
        path.string());
  return found;
}

}  // namespace wick
