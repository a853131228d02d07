#include "wick/io/sha256.h"

#include <openssl/evp.h>

#include <vector>

#include "wick/core/error.h"
#include "wick/io/descriptor.h"

namespace wick {

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  check(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
        "SHA-256: OpenSSL's libcrypto does not offer it");
}

void Sha256::update(const void* data, size_t bytes) {
  check(EVP_DigestUpdate(context_.get(), data, bytes) == 1, "SHA-256: OpenSSL's libcrypto failed");
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  check(EVP_DigestFinal_ex(context_.get(), digest, &size) == 1, "SHA-256: OpenSSL's libcrypto failed");
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  return hash.hex();
}

std::string sha256_hex_of_file(const std::filesystem::path& path) {
  const FileDescriptor file(path);
  std::vector<char> block(size_t{1} << 20);
  Sha256 hash;
  uint64_t offset = 0;
  while (const size_t n = file.read_at(offset, block.data(), block.size())) {
    hash.update(block.data(), n);
    offset += n;
  }
  return hash.hex();
}

}  // namespace wick
