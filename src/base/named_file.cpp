#include "base/named_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace quire {

Status check_file(const std::string& path, FileUse use) {
  const bool writes = use == FileUse::kWrite;
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) {
    const int why = errno;
    std::filesystem::path parent = std::filesystem::path(path).parent_path();
    if (parent.empty()) parent = ".";
    std::error_code none;
    if (why != ENOENT) return invalid_argument("\"{}\" cannot be opened: {}", path, std::strerror(why));
    if (!writes) return not_found("there is no file \"{}\"", path);
    if (std::filesystem::is_directory(parent, none)) return {};
    return not_found("there is no directory {}, in which \"{}\" would be written", parent.string(), path);
  }
  if (S_ISDIR(found.st_mode)) return invalid_argument("\"{}\" is a directory, expected a file", path);
  if (use != FileUse::kReadOnce && !S_ISREG(found.st_mode)) {
    return invalid_argument("\"{}\" is no ordinary file (a pipe or a device), and {}", path,
                            writes ? "what is written must be found again: name a file"
                                   : "it is read more than once: write it to a file first");
  }
  if (::access(path.c_str(), writes ? W_OK : R_OK) != 0) {
    return invalid_argument("\"{}\" cannot be {}: {}", path, writes ? "written" : "read", std::strerror(errno));
  }
  return {};
}

}  // namespace quire
