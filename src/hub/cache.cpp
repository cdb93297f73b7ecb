#include "hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "hub/reason.h"

namespace quire::hub {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostListingBytes = size_t{256} << 20;

Status make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return unavailable("the folder {} cannot be made: {}", path.string(), error.message());
  return {};
}

std::string trimmed(std::string text) {
  while (!text.empty() && static_cast<unsigned char>(text.back()) <= ' ') text.pop_back();
  return text;
}

}  // namespace

ModelCache::ModelCache(const fs::path& cache, const ModelName& name)
    : cache_(cache), folder_(cache / name.folder()), name_(name.folder()) {}

fs::path ModelCache::snapshot(std::string_view commit) const {
  return folder_ / "snapshots" / fs::path(commit);
}
fs::path ModelCache::blob(std::string_view hash) const {
  return folder_ / "blobs" / fs::path(hash);
}
fs::path ModelCache::lock(std::string_view hash) const {
  return cache_ / ".locks" / name_ / (std::string(hash) + ".lock");
}

std::optional<std::string> ModelCache::commit_of(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  const auto text = read_small_file(folder_ / "refs" / revision, 256);
  if (!text.ok()) return std::nullopt;
  std::string commit = trimmed(*text);
  if (!is_commit(commit)) return std::nullopt;
  return commit;
}

Status ModelCache::write_ref(const std::string& revision, const std::string& commit) const {
  if (is_commit(revision) || commit_of(revision) == commit) return {};
  return write_whole_file(folder_ / "refs" / revision, commit);
}

bool ModelCache::has(std::string_view commit, std::string_view path) const {
  std::error_code error;
  return fs::is_regular_file(snapshot(commit) / fs::path(path), error);
}

std::vector<std::string> ModelCache::files_of(std::string_view commit) const {
  std::vector<std::string> files;
  const fs::path root = snapshot(commit);
  std::error_code error;
  for (fs::recursive_directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) files.push_back(entry->path().lexically_relative(root).generic_string());
  }
  return files;
}

std::optional<Listing> ModelCache::listing(std::string_view commit) const {
  for (const char* where : {".quire", "trees"}) {
    const auto text = read_small_file(folder_ / where / (std::string(commit) + ".json"), kMostListingBytes);
    if (!text.ok()) continue;
    auto listing = parse_listing_json(*text);
    if (listing.ok()) return std::move(*listing);
  }
  return std::nullopt;
}

Status ModelCache::write_listing(std::string_view commit, const Listing& listing) const {
  return write_whole_file(folder_ / ".quire" / (std::string(commit) + ".json"), listing_json(listing));
}

Status ModelCache::link(const std::string& commit, const std::string& path, const std::string& hash) const {
  const fs::path pointer = snapshot(commit) / path;
  const fs::path target = blob(hash).lexically_relative(pointer.parent_path());
  std::error_code error;
  if (fs::read_symlink(pointer, error) == target && !error) return {};
  QUIRE_RETURN_IF_ERROR(make_folder(pointer.parent_path()));
  const fs::path made = pointer.parent_path() / fmt::format(".quire-{}-{}", ::getpid(), hash.substr(0, 8));
  fs::remove(made, error);
  fs::create_symlink(target, made, error);
  if (error) fs::create_hard_link(blob(hash), made, error);  // a file system without symbolic links
  if (!error) fs::rename(made, pointer, error);
  if (error) return unavailable("{} cannot be made: {}", pointer.string(), error.message());
  return {};
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

Result<std::optional<FileLock>> FileLock::try_take(const fs::path& path) {
  QUIRE_RETURN_IF_ERROR(make_folder(path.parent_path()));
  while (true) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664);
    if (fd < 0) return unavailable("the lock {} cannot be opened: {}", path.string(), reason(errno));
    FileLock lock(fd);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return std::optional<FileLock>();
      return std::optional<FileLock>(std::move(lock));  // no locks here: what is downloaded is checked all the same
    }
    // Who held it may have removed the file: then this is a lock on nothing.
    struct stat held {
    }, named{};
    if (::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
        held.st_dev == named.st_dev) {
      return std::optional<FileLock>(std::move(lock));
    }
  }
}

Status write_whole_file(const fs::path& path, std::string_view text) {
  QUIRE_RETURN_IF_ERROR(make_folder(path.parent_path()));
  const fs::path made = path.string() + fmt::format(".{}.tmp", ::getpid());
  const int fd = ::open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  int error = fd < 0 ? errno : 0;
  while (error == 0 && !text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) error = errno;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  if (fd >= 0) ::close(fd);
  if (error == 0 && ::rename(made.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  if (fd >= 0) ::unlink(made.c_str());
  return unavailable("{} cannot be written: {}", path.string(), reason(error));
}

Result<std::string> read_small_file(const fs::path& path, size_t most_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return not_found("{} cannot be opened: {}", path.string(), reason(errno));
  std::string text;
  char part[16 << 10];
  int error = 0;
  while (text.size() <= most_bytes) {
    const ssize_t got = ::read(fd, part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    text.append(part, static_cast<size_t>(got));
  }
  ::close(fd);
  if (error != 0) return not_found("{} cannot be read: {}", path.string(), reason(error));
  if (text.size() > most_bytes) return resource_exhausted("{} has more than {} bytes", path.string(), most_bytes);
  return text;
}

}  // namespace quire::hub
