// The Hub as a test wants it: one repository, its large files at another host, and faults.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hub/hub.h"
#include "tests/hub/fake_server.h"

namespace quire::hub {

inline const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";
inline const std::string kOtherCommit = "89abcdef0123456789abcdef0123456789abcdef";

std::string sha256_of(const std::string& content);
std::string git_hash_of(const std::string& content);
// So many bytes of no pattern, the same for the same seed.
std::string some_bytes(size_t size, uint32_t seed);

class FakeHub {
 public:
  FakeHub();

  std::map<std::string, std::string> files;  // by path
  std::string commit = kCommit;              // of "main"
  size_t large_bytes = 1000;                 // from this size on a file is LFS's, at the other host
  size_t page_size = 1000;                   // of the listing
  bool has_tree = true;
  // Asked before each answer, for the server at 127.0.0.1 (false) and the other host (true).
  std::function<std::optional<FakeAnswer>(const FakeRequest&, bool other_host)> fault;

  FakeServer& hub() { return *hub_; }
  FakeServer& other_host() { return *other_; }

 private:
  FakeAnswer answer(const FakeRequest& request);
  FakeAnswer tree(const std::string& target) const;
  FakeAnswer resolve(const FakeRequest& request, const std::string& path) const;
  static FakeAnswer content(const FakeRequest& request, const std::string& body, FakeAnswer answer);

  std::unique_ptr<FakeServer> hub_, other_;
};

// A folder that goes with the test.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  std::filesystem::path path;
};

// Collects what a download says.
class Told final : public Progress {
 public:
  void started(int num_files, int64_t num_bytes, int64_t num_there) override {
    files = num_files;
    bytes += num_bytes;
    there += num_there;
  }
  void advanced(int64_t count) override { done += count; }
  void note(const std::string& text) override {
    const std::lock_guard guard(mutex);
    notes.push_back(text);
  }
  void finished() override { ends += 1; }

  std::mutex mutex;
  std::vector<std::string> notes;
  int files = 0, ends = 0;
  int64_t bytes = 0, there = 0;
  std::atomic<int64_t> done{0};
};

}  // namespace quire::hub
