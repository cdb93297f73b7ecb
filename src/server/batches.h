// Batches under way and over: their states, and what of them is on disk. A batch whose server died, however it died, is
// gone on with by the next one: no line's answer is lost or given twice.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "server/batch_folder.h"
#include "server/batch_lines.h"
#include "server/batch_worker.h"

namespace quire::server {

// Thread-safe.
class Batches {
 public:
  // tenants: owners by number; weights: theirs, or none. folder and worker must outlive it.
  Batches(BatchFolder& folder, BatchWorker& worker, std::vector<std::string> tenants, std::vector<double> weights);

  // Goes on with what the folder has of unfinished ones. Once, before anything else.
  void resume();
  // window_seconds: until it expires.
  // Errors: not_found (the file), invalid_argument, resource_exhausted (too many are under way: of all, or of this
  // owner, who among several may have as many as are left for others, times its weight over the heaviest one's),
  // unavailable.
  Result<boost::json::object> create(const std::string& owner, const std::string& input_id, const std::string& endpoint,
                                     const std::string& window, int64_t window_seconds, boost::json::value metadata);
  // Errors: not_found; invalid_argument when it is over already (cancel).
  Result<boost::json::object> find(std::string_view id, std::string_view owner) const;
  Result<boost::json::object> cancel(std::string_view id, std::string_view owner);
  boost::json::array list(std::string_view owner) const;  // the oldest first
  // Whether a batch that is not over reads this file.
  bool reads(std::string_view file_id) const;

 private:
  struct Entry {
    Batch batch;
    std::shared_ptr<LineJob> job;  // while it is under way
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  // Without the lock. Errors: those of validate_lines().
  Result<Validation> validate(const std::string& input_id, const std::string& endpoint) const;
  // Each under the lock.
  // validated: of a batch that is new; others have been validated.
  void begin(Entry& entry, const Result<Validation>& validated);
  Status open_answers(Entry& entry, LineJob& job);
  void over(Entry& entry, LineJob& job);
  void fail(Entry& entry, const std::vector<LineError>& errors);
  void set_status(Entry& entry, std::string_view status, const char* time_field);
  void save(const Entry& entry);
  Status check_share(const std::string& owner) const;
  int32_t tenant_of(const std::string& owner) const;  // -1: whose key is there no more
  void forget_oldest();
  static boost::json::object shown(const Entry& entry);
  Result<const Entry*> lookup(std::string_view id, std::string_view owner) const;

  BatchFolder& folder_;
  BatchWorker& worker_;
  const std::vector<std::string> tenants_;
  const std::vector<double> weights_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::vector<std::string> order_;  // ids, the oldest first
};

}  // namespace quire::server
