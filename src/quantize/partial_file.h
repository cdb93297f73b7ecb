// A file that is written in pieces, under a name of its own until it is whole, so that what was done before a cut need
// not be done again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/status.h"

namespace quire::quantize {

// While it is written the file is called PATH.partial; PATH.partial.state says for what it is and how many pieces of it
// are done. One process writes a file at a time.
class PartialFile {
 public:
  // `purpose`: a hash of all that the content depends on. An earlier partial file of the same purpose and size is gone
  // on with, any other is begun anew. Errors: invalid_argument where `path` exists or cannot be written.
  static Result<PartialFile> open(const std::filesystem::path& path, uint64_t purpose, int64_t bytes);
  ~PartialFile();
  PartialFile(PartialFile&& other) noexcept;
  PartialFile& operator=(PartialFile&&) = delete;

  int64_t pieces_done() const { return pieces_done_; }
  const std::filesystem::path& partial_path() const { return partial_; }

  // Errors of all three: resource_exhausted or invalid_argument with the system's reason.
  Status write(int64_t offset, std::span<const uint8_t> bytes);
  Status read(int64_t offset, std::span<uint8_t> bytes) const;
  // All of the next piece has been written: after a cut its writing is not done again.
  Status finish_piece();
  // All pieces have: the file gets its name. The last call.
  Status finish();

 private:
  PartialFile(std::filesystem::path path, uint64_t purpose, int64_t bytes, int file);
  Status save_state() const;

  std::filesystem::path path_;
  std::filesystem::path partial_;
  std::filesystem::path state_;
  uint64_t purpose_ = 0;
  int64_t bytes_ = 0;
  int file_ = -1;
  int64_t pieces_done_ = 0;
};

}  // namespace quire::quantize
