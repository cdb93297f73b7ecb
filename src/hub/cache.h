// The Hub's cache on disk, as huggingface_hub lays it out, so that its files are transformers' and vLLM's too:
//
//   CACHE/models--ORG--NAME/blobs/HASH                    a file's content
//                          /snapshots/COMMIT/PATH         a relative link to it
//                          /refs/REVISION                 the commit that a branch or tag stood at
//                          /trees/COMMIT.json             a commit's listing, where huggingface_hub wrote one
//   CACHE/.locks/models--ORG--NAME/HASH.lock              held by who downloads it
//
// and of quire's own
//
//   models--ORG--NAME/blobs/HASH.quire.incomplete[.json]  part of a file, and which
//                    /.quire/COMMIT.json                  a commit's listing (not in trees/: that would say that all
//                                                         of it was asked for)
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "hub/listing.h"
#include "hub/model_name.h"

namespace quire::hub {

// One model's folder. Holds no state: any thread.
class ModelCache {
 public:
  ModelCache(const std::filesystem::path& cache, const ModelName& name);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path snapshot(std::string_view commit) const;
  std::filesystem::path blob(std::string_view hash) const;
  std::filesystem::path lock(std::string_view hash) const;

  // What a revision stood at the last time; a whole commit hash is itself. REQUIRES: is_safe_path(revision).
  std::optional<std::string> commit_of(const std::string& revision) const;
  Status write_ref(const std::string& revision, const std::string& commit) const;

  // The file is there with its content.
  bool has(std::string_view commit, std::string_view path) const;
  // All such files of a snapshot, by path.
  std::vector<std::string> files_of(std::string_view commit) const;
  std::optional<Listing> listing(std::string_view commit) const;
  Status write_listing(std::string_view commit, const Listing& listing) const;

  // snapshots/COMMIT/PATH -> blobs/HASH, over what was there.
  Status link(const std::string& commit, const std::string& path, const std::string& hash) const;

 private:
  std::filesystem::path cache_;
  std::filesystem::path folder_;
  std::string name_;  // "models--ORG--NAME"
};

// An exclusive lock between processes, the one that huggingface_hub takes.
class FileLock {
 public:
  // nullopt: another process holds it. A file system without locks counts as free.
  static Result<std::optional<FileLock>> try_take(const std::filesystem::path& path);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

// Writes all of a small file and then gives it its name. Creates its folder.
Status write_whole_file(const std::filesystem::path& path, std::string_view text);
// Errors: not_found, resource_exhausted beyond `most_bytes`.
Result<std::string> read_small_file(const std::filesystem::path& path, size_t most_bytes);

struct CachedFile {
  std::string path;  // in the repository
  int64_t size = 0;
  std::filesystem::path blob;  // where its content lies
};

struct CachedSnapshot {
  std::string commit;
  std::vector<std::string> refs;  // branches and tags that stand at it
  std::vector<CachedFile> files;
  std::filesystem::path folder;
};

struct CachedModel {
  std::string repository;  // "ORG/NAME"
  std::filesystem::path folder;
  std::vector<CachedSnapshot> snapshots;
  int64_t bytes = 0;             // on disk, what several snapshots share once
  int64_t incomplete_bytes = 0;  // of it, of downloads that are not done
};

// All models of a cache, by name; folders that are none are passed over. Empty where there is no such cache.
std::vector<CachedModel> scan_cache(const std::filesystem::path& cache);

// When a file was last read, or else written, in seconds since 1970.
int64_t last_used(const std::filesystem::path& file);

struct RemoveWhat {
  ModelName name;        // with a GGUF type or file: those files alone
  std::string revision;  // that snapshot alone; empty: all
};

struct Removed {
  int64_t bytes = 0;
  int files = 0;
  bool whole = false;  // nothing of the model is left
};

// Removes what no other snapshot needs. With `dry` it only says what it would. Errors: not_found; unavailable while
// another process downloads it.
Result<Removed> remove_model(const std::filesystem::path& cache, const RemoveWhat& what, bool dry);

}  // namespace quire::hub
