#include "checkpoint/directory_files.h"

#include <algorithm>
#include <system_error>

#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

// `file` is below `folder`; both without symbolic links.
bool is_below(const fs::path& file, const fs::path& folder) {
  const auto [in_folder, in_file] = std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
  return in_folder == folder.end() && in_file != file.end();
}

}  // namespace

Result<ModelDirectory> ModelDirectory::open(const fs::path& path) {
  ModelDirectory directory;
  directory.path_ = path;
  std::error_code error;
  directory.real_ = fs::canonical(path, error);
  if (error) return invalid_argument("{}: cannot be read: {}", path.string(), error.message());
  for (fs::directory_iterator entry(directory.real_, error), end; !error && entry != end; entry.increment(error)) {
    directory.names_.push_back(entry->path().filename().string());
  }
  if (error) return invalid_argument("{}: cannot be listed: {}", path.string(), error.message());
  std::sort(directory.names_.begin(), directory.names_.end());
  directory.top_ = directory.real_;
  return directory;
}

Result<ModelDirectory> ModelDirectory::folder(std::string_view name) const {
  QUIRE_ASSIGN_OR_RETURN(const fs::path real, resolve(name));
  QUIRE_ASSIGN_OR_RETURN(ModelDirectory inner, open(real));
  inner.path_ = path_ / fs::path(name);
  inner.top_ = top_;
  return inner;
}

bool ModelDirectory::has(std::string_view name) const {
  return std::binary_search(names_.begin(), names_.end(), name);
}

Result<fs::path> ModelDirectory::resolve(std::string_view name) const {
  if (!is_plain_name(name)) {
    return data_loss("{}: the file name {} is not a plain name in this directory", path_.string(), in_quotes(name));
  }
  if (!has(name)) return not_found("{}: there is no {}", path_.string(), in_quotes(name));
  std::error_code error;
  const fs::path real = fs::canonical(real_ / fs::path(name), error);
  if (error) return not_found("{}: {} leads nowhere: {}", path_.string(), in_quotes(name), error.message());
  if (is_below(real, top_)) return real;
  // <repository>/snapshots/<revision>/model.safetensors -> <repository>/blobs/<hash>
  const fs::path snapshots = top_.parent_path();
  if (snapshots.filename() == "snapshots") {
    const fs::path repository = snapshots.parent_path();
    if (is_below(real, repository / "blobs")) return real;
    // blobs/<hash> may in turn be a link into the store that the repositories of a cache share: <cache>/blobs
    if (repository.filename().string().starts_with("models--") && is_below(real, repository.parent_path() / "blobs")) {
      return real;
    }
  }
  return data_loss("{}: {} is a symbolic link that leaves the directory, which is refused", path_.string(),
                   in_quotes(name));
}

}  // namespace quire::checkpoint
