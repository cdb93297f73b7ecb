// A folder that holds what batches are made of: uploaded files, files of answers, and the state of each batch. What is
// in it survives the process; one process uses it at a time.
//
//   files/file-ID        a file's content          batches/batch_ID.json    a batch
//   files/file-ID.json   what is known of it       lock
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"

namespace quire::server {

struct StoredFile {
  std::string id;
  std::string owner;  // whose it is; for others it does not exist
  std::string filename;
  std::string purpose;
  int64_t bytes = 0;
  int64_t created_at = 0;  // Unix seconds

  boost::json::object object() const;  // as its client sees it
};

struct Batch {
  std::string owner;
  std::string output_id;  // the files of answers, from the beginning; shown when they are complete
  std::string errors_id;
  boost::json::object body;  // as its client sees it
};

// Thread-safe.
class BatchFolder {
 public:
  // Made where it is not there. max_bytes: of all files together.
  // Errors: unavailable: it cannot be made or read, or another process uses it.
  static Result<std::unique_ptr<BatchFolder>> open(const std::string& path, int64_t max_bytes);
  ~BatchFolder();
  BatchFolder(const BatchFolder&) = delete;
  BatchFolder& operator=(const BatchFolder&) = delete;

  // Errors: resource_exhausted: the folder is full; unavailable: the disk is.
  Result<StoredFile> add_file(std::string owner, std::string filename, std::string purpose, std::string_view content);
  // Makes a file known whose content is at content_path() already.
  Status adopt_file(StoredFile file);
  // Errors: not_found.
  Result<StoredFile> find_file(std::string_view id, std::string_view owner) const;
  Status remove_file(std::string_view id, std::string_view owner);
  std::vector<StoredFile> files(std::string_view owner) const;  // the oldest first
  // REQUIRES: an id of this folder's making.
  std::string content_path(const std::string& id) const;

  // Errors: unavailable.
  Status save_batch(const Batch& batch);
  std::vector<Batch> load_batches() const;  // the oldest first
  void forget_batch(const std::string& id);

 private:
  BatchFolder(std::string path, int64_t max_bytes, int lock)
      : path_(std::move(path)), max_bytes_(max_bytes), lock_(lock) {}
  Status load_files();
  Status write_file_record(const StoredFile& file);

  const std::string path_;
  const int64_t max_bytes_;
  const int lock_;
  mutable std::mutex mutex_;
  std::map<std::string, StoredFile, std::less<>> files_;
  int64_t bytes_ = 0;
};

Result<std::string> read_whole_file(const std::string& path);

}  // namespace quire::server
