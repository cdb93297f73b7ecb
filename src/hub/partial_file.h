// A file that is being downloaded: its bytes, and a note beside it of which of them are there, so that another process
// can go on with it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/status.h"

namespace quire::hub {

// Any thread. One process at a time: the caller holds the file's lock.
class PartialFile {
 public:
  // What an earlier download left is taken over where it is of the same size. Errors: unavailable.
  static Result<std::unique_ptr<PartialFile>> open(const std::filesystem::path& path, int64_t size,
                                                   int64_t piece_bytes);
  // Of a file of that size, how much an earlier download left.
  static int64_t bytes_there(const std::filesystem::path& path, int64_t size);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  // The bytes [begin, end) of a piece that nobody has taken: what is left of it.
  struct Piece {
    size_t index = 0;
    int64_t begin = 0, end = 0;
  };
  std::optional<Piece> take();
  void give_back(const Piece& piece);
  // Appends to a piece that the caller has taken. Errors: resource_exhausted where the disk is full.
  Status append(Piece& piece, const char* data, size_t size);

  int64_t size() const { return size_; }
  int64_t done_bytes() const;
  size_t num_pieces_left() const;
  bool is_complete() const { return done_bytes() == size_; }
  int fd() const { return fd_; }

  // Nothing is there any more, and all of it is one piece. REQUIRES: no piece is taken.
  void begin_anew();
  // Writes the note.
  void save() const;
  // Has it on the disk and gives it its name.
  Status finish(const std::filesystem::path& name);
  void discard();

 private:
  PartialFile(std::filesystem::path path, int fd, int64_t size, int64_t piece_bytes);
  bool load();
  int64_t end_of(size_t index) const;
  void save_locked() const;

  const std::filesystem::path path_;
  const int fd_;
  const int64_t size_;
  mutable std::mutex mutex_;
  int64_t piece_bytes_;
  std::vector<int64_t> done_;  // of each piece, from its beginning
  std::vector<bool> taken_;
  mutable std::chrono::steady_clock::time_point saved_;
};

}  // namespace quire::hub
