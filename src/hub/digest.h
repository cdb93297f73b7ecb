// Checks a file's content by the hash that the Hub gives it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"

namespace quire::hub {

// Of the whole file behind `fd`: SHA-256 where `like` has 64 digits, git's SHA-1 of a blob where it has 40. Lower case.
// Errors: internal_error where it cannot be read; cancelled once `stopped` says so (it may be empty).
Result<std::string> file_hash(int fd, int64_t size, const std::string& like, const std::function<bool()>& stopped);

}  // namespace quire::hub
