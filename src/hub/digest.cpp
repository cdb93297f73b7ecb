#include "hub/digest.h"

#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

#include <openssl/evp.h>

namespace quire::hub {

Result<std::string> file_hash(int fd, int64_t size, const std::string& like, const std::function<bool()>& stopped) {
  const bool sha256 = like.size() == 64;
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> digest(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  QUIRE_CHECK(digest != nullptr);
  QUIRE_CHECK(EVP_DigestInit_ex(digest.get(), sha256 ? EVP_sha256() : EVP_sha1(), nullptr) == 1);
  if (!sha256) {
    const std::string head = fmt::format("blob {}", size) + '\0';
    QUIRE_CHECK(EVP_DigestUpdate(digest.get(), head.data(), head.size()) == 1);
  }
  std::vector<char> part(1 << 20);
  for (int64_t at = 0; at < size;) {
    if (stopped && stopped()) return cancelled("stopped while a file was checked");
    const ssize_t got = ::pread(fd, part.data(), part.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return internal_error("a downloaded file cannot be read back: {}",
                            got == 0 ? "it is shorter than it was" : std::generic_category().message(errno));
    }
    QUIRE_CHECK(EVP_DigestUpdate(digest.get(), part.data(), static_cast<size_t>(got)) == 1);
    at += got;
  }
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int count = 0;
  QUIRE_CHECK(EVP_DigestFinal_ex(digest.get(), bytes, &count) == 1);
  std::string hex;
  for (unsigned int i = 0; i < count; ++i) hex += fmt::format("{:02x}", bytes[i]);
  return hex;
}

}  // namespace quire::hub
