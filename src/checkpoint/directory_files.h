// Which files of a Hugging Face directory make the model, and whether they may be read.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::checkpoint {

class ModelDirectory {
 public:
  // Errors: invalid_argument when the directory cannot be read.
  static Result<ModelDirectory> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  bool has(std::string_view name) const;
  // Where the file of this plain name really lies. Errors: not_found; data_loss for a name with a folder in it and for
  // a symbolic link that leaves the directory (but for the blobs of Hugging Face's cache).
  Result<std::filesystem::path> resolve(std::string_view name) const;
  // A folder here. What its files lead to must lie in this directory, too. Errors: those of resolve(), and of open().
  Result<ModelDirectory> folder(std::string_view name) const;
  // Names of the files here, sorted.
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::filesystem::path path_;  // as given, for messages
  std::filesystem::path real_;  // without symbolic links
  std::filesystem::path top_;   // the model's, likewise: files may lie anywhere below it
  std::vector<std::string> names_;
};

}  // namespace quire::checkpoint
