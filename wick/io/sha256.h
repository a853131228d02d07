// SHA-256 (FIPS 180-4), as lower-case hexadecimal.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace wick {

class Sha256 {
 public:
  Sha256();
  void update(const void* data, size_t bytes);
  std::string hex();  // ends the hash: call it once

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;  // OpenSSL's EVP_MD_CTX
};

std::string sha256_hex(std::string_view bytes);
std::string sha256_hex_of_file(const std::filesystem::path& path);

}  // namespace wick
