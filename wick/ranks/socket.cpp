#include "wick/ranks/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "wick/core/error.h"

namespace wick {
namespace {

using Time = std::chrono::steady_clock::time_point;

struct FreeAddresses {
  void operator()(addrinfo* all) const { ::freeaddrinfo(all); }
};

// The addresses of a host, or of none for those on which to listen. Null with the reason if there are none.
std::unique_ptr<addrinfo, FreeAddresses> addresses_of(const char* host, int port, std::string* why) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV | (host ? 0 : AI_PASSIVE);
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host, std::to_string(port).c_str(), &wanted, &found);
  if (error != 0) *why = error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error);
  return std::unique_ptr<addrinfo, FreeAddresses>(error == 0 ? found : nullptr);
}

int open_socket(const addrinfo& at) { return ::socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC, at.ai_protocol); }

// False once the deadline has passed.
bool wait_for(int fd, short events, Time deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd one{fd, events, 0};
    const int ready = ::poll(&one, 1, int(std::clamp<int64_t>(left.count(), 0, 1000)));
    if (ready > 0) return true;
    if (left.count() <= 0) return false;
  }
}

// Null with errno set if the address cannot be listened on. IPv6's takes connections of IPv4 too.
Socket listen_on(const addrinfo& at) {
  Socket socket(open_socket(at));
  if (!socket) return socket;
  const int on = 1, off = 0;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // closed connections may keep the port a while
  if (at.ai_family == AF_INET6) ::setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(socket.fd(), at.ai_addr, at.ai_addrlen) == 0 && ::listen(socket.fd(), SOMAXCONN) == 0) return socket;
  const int error = errno;
  socket.close();
  errno = error;
  return socket;
}

Socket connect_to(const addrinfo& at, Time deadline, std::string* why) {
  Socket socket(open_socket(at));
  int error = 0;
  if (!socket || (::connect(socket.fd(), at.ai_addr, at.ai_addrlen) != 0 && errno != EINPROGRESS && errno != EINTR)) {
    error = errno;
  } else if (!wait_for(socket.fd(), POLLOUT, deadline)) {
    error = ETIMEDOUT;
  } else {
    socklen_t size = sizeof error;
    ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == 0) return socket;
  *why = std::strerror(error);
  return Socket();
}

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  if (fd < 0) return;
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // a pair of one machine has no such option
}

Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void Socket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void Socket::end_sending() const { ::shutdown(fd_, SHUT_WR); }

ptrdiff_t Socket::receive(void* data, size_t bytes) const {
  while (true) {
    const ssize_t n = ::recv(fd_, data, bytes, 0);
    if (n > 0) return n;
    if (n == 0) return -1;
    if (errno != EINTR) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
  }
}

ptrdiff_t Socket::send(const void* data, size_t bytes) const {
  while (true) {
    const ssize_t n = ::send(fd_, data, bytes, MSG_NOSIGNAL);
    if (n >= 0) return n;
    if (errno != EINTR) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
  }
}

bool Socket::receive_all(void* data, size_t bytes, Time deadline) const {
  for (size_t done = 0; done < bytes;) {
    const ptrdiff_t n = receive(static_cast<char*>(data) + done, bytes - done);
    if (n < 0 || (n == 0 && !wait_for(fd_, POLLIN, deadline))) return false;
    done += size_t(n);
  }
  return true;
}

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0 || !name[0]) return "localhost";
  return name;
}

std::string host_and_port(const std::string& host, int port) {
  const bool is_ipv6 = host.find(':') != host.npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Socket listen_on(const std::string& address, int port) {
  const bool is_loopback = address == "127.0.0.1" || address == "localhost" || address == "::1";
  std::string why;
  const auto all = addresses_of(is_loopback ? (address == "::1" ? "::1" : "127.0.0.1") : nullptr, port, &why);
  // IPv6 comes first, which takes connections of both kinds.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* at = all.get(); at; at = at->ai_next) {
      if (at->ai_family != family) continue;
      if (Socket socket = listen_on(*at)) return socket;
      const int error = errno;
      check(
          error != EADDRINUSE,
          "port {} of {}, where rank 0 listens, is taken by another program: set WICK_ID_PORT to a free one, the same "
          "for all ranks",
          port, host_name());
      why = std::strerror(error);
    }
  }
  fail("rank 0 cannot listen on port {} of {}: {}; set WICK_ID_PORT to another one, the same for all ranks", port,
       host_name(), why);
}

int port_of(const Socket& listening) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(listening.fd(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

Socket connect_to(const std::string& host, int port, Time deadline, std::string* why) {
  constexpr std::chrono::seconds kEach{3};  // for one address: the way to another may be shut without a word
  const auto all = addresses_of(host.c_str(), port, why);
  for (const addrinfo* at = all.get(); at; at = at->ai_next) {
    if (Socket socket = connect_to(*at, std::min(deadline, std::chrono::steady_clock::now() + kEach), why))
      return socket;
  }
  return Socket();
}

}  // namespace wick
