// The file that a Unix socket is.
#pragma once

#include <cstdint>
#include <string>

#include <sys/types.h>

#include "base/status.h"

namespace quire::server {

// Removes a socket at `path` that nobody listens on any more.
// Errors: invalid_argument (too long a path), unavailable (somebody listens there, or it is not a socket).
Status remove_stale_socket(const std::string& path);

// The file of a bound socket: its permissions, and its removal at the end if it is still the same file.
class UnixSocketFile {
 public:
  UnixSocketFile() = default;
  ~UnixSocketFile();
  UnixSocketFile(const UnixSocketFile&) = delete;
  UnixSocketFile& operator=(const UnixSocketFile&) = delete;

  // Errors: unavailable.
  Status adopt(const std::string& path, uint32_t mode);

 private:
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace quire::server
