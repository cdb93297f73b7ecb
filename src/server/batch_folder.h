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
#include "server/shared_bytes.h"

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
  // Made where it is not there. max_bytes: of all files and answers together, of which an owner may have its share
  // (server/shared_bytes.h). owners, weights: one each, or no weights; files of others are nobody's.
  // Errors: unavailable: it cannot be made or read, or another process uses it.
  static Result<std::unique_ptr<BatchFolder>> open(const std::string& path, int64_t max_bytes,
                                                   std::vector<std::string> owners, const std::vector<double>& weights);
  ~BatchFolder();
  BatchFolder(const BatchFolder&) = delete;
  BatchFolder& operator=(const BatchFolder&) = delete;

  // Errors: resource_exhausted: the folder is full, or the owner's share of it; unavailable: the disk is.
  Result<StoredFile> add_file(std::string owner, std::string filename, std::string purpose, std::string_view content);
  // Room for answers that are being written; what to say where there is none.
  HeldBytes place(std::string_view owner);
  Status full() const;
  // Makes a file known whose content is at content_path() already, room or not.
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
  struct Known {
    StoredFile file;
    HeldBytes room;
  };
  BatchFolder(std::string path, int64_t max_bytes, std::vector<std::string> owners, const std::vector<double>& weights,
              int lock)
      : path_(std::move(path)),
        owners_(std::move(owners)),
        room_(std::make_shared<SharedBytes>(static_cast<size_t>(max_bytes), weights)),
        lock_(lock) {}
  Status load_files();
  Status write_file_record(const StoredFile& file);

  const std::string path_;
  const std::vector<std::string> owners_;  // by tenant
  const std::shared_ptr<SharedBytes> room_;
  const int lock_;
  mutable std::mutex mutex_;
  std::map<std::string, Known, std::less<>> files_;
};

Result<std::string> read_whole_file(const std::string& path);

}  // namespace quire::server
