// Reads of files into scattered memory, several under way at once where the kernel has io_uring and lets this process
// use it (containers often do not); one after the other by preadv() elsewhere. What a disk gives with several requests
// is more than what it gives with one; of what the page cache has, both take the same time.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace quire::runner {

// All of `parts` from or to one place of a file, one behind the other. `move` is preadv() or pwritev(). False: errno
// says why; 0 where the file ends before.
template <typename Move>
bool move_all(int descriptor, std::span<const iovec> parts, int64_t offset, const Move& move) {
  std::vector<iovec> left(parts.begin(), parts.end());
  size_t first = 0;
  while (first < left.size()) {
    const auto count = static_cast<int>(std::min<size_t>(left.size() - first, IOV_MAX));
    errno = 0;
    ssize_t moved = move(descriptor, left.data() + first, count, offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return false;
    offset += moved;
    while (moved > 0) {
      iovec& part = left[first];
      const auto taken = std::min(static_cast<size_t>(moved), part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + taken;
      part.iov_len -= taken;
      moved -= static_cast<ssize_t>(taken);
      if (part.iov_len == 0) ++first;
    }
    while (first < left.size() && left[first].iov_len == 0) ++first;
  }
  return true;
}

// Not for several threads at once.
class ReadQueue {
 public:
  struct Read {
    int descriptor = -1;
    int64_t offset = 0;
    std::vector<iovec> parts;
  };
  static constexpr size_t kDepth = 16;  // reads under way at once

  enum class Way { kDeepest, kOneByOne };
  explicit ReadQueue(Way way = Way::kDeepest);
  ~ReadQueue();
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  bool is_deep() const { return ring_ != nullptr; }  // by io_uring

  // Returns when all are done. done(i, ok): of reads[i], once, in this thread, as soon as it is known and in any order;
  // not ok: what its parts hold is undefined. The descriptors stay open until then.
  void read(std::span<const Read> reads, const std::function<void(size_t, bool)>& done);

 private:
  struct Ring;
  std::unique_ptr<Ring> ring_;
};

}  // namespace quire::runner
