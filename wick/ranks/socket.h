// Sockets of TCP that never block: whoever waits for one polls it. IPv4 and IPv6.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace wick {

class Socket {
 public:
  Socket() = default;
  // Takes a descriptor; makes it non-blocking, and TCP send small messages at once.
  explicit Socket(int fd);
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void close();
  void end_sending() const;  // the other end reads all bytes that were sent, then the end

  // Bytes that were taken or sent. 0 if none can be now, negative if the connection has ended; both are retried after
  // signals, and none raises SIGPIPE.
  ptrdiff_t receive(void* data, size_t bytes) const;
  ptrdiff_t send(const void* data, size_t bytes) const;
  // The same until all bytes are there or the deadline has passed, which returns false, as an end does.
  bool receive_all(void* data, size_t bytes, std::chrono::steady_clock::time_point deadline) const;

 private:
  int fd_ = -1;
};

std::string host_name();                                       // of this machine
std::string host_and_port(const std::string& host, int port);  // "host:1234", "[::1]:1234"

// Listens on all addresses of this machine, or on the loopback device alone if that is the address. Port 0 is any free
// one. Throws Error, which names WICK_ID_PORT, if the port is taken.
Socket listen_on(const std::string& address, int port);
int port_of(const Socket& listening);

// Connects to the first address of the host that answers before the deadline; else returns none with the reason.
Socket connect_to(const std::string& host, int port, std::chrono::steady_clock::time_point deadline, std::string* why);

}  // namespace wick
