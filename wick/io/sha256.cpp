#include "wick/io/sha256.h"

#include <openssl/evp.h>

#include <vector>

#include "wick/core/error.h"
#include "wick/io/descriptor.h"

namespace wick {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  check(context_->evp && EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1,
        "SHA-256: OpenSSL's libcrypto does not offer it");
}

Sha256::~Sha256() = default;

void Sha256::update(const void* data, size_t bytes) {
  check(EVP_DigestUpdate(context_->evp, data, bytes) == 1, "SHA-256: OpenSSL's libcrypto failed");
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  check(EVP_DigestFinal_ex(context_->evp, digest, &size) == 1, "SHA-256: OpenSSL's libcrypto failed");
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
