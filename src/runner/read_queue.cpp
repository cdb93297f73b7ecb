#include "runner/read_queue.h"

#include <liburing.h>

#include "base/check.h"

namespace quire::runner {
namespace {

bool read_one(const ReadQueue::Read& read) {
  return move_all(read.descriptor, read.parts, read.offset, ::preadv);
}

int64_t bytes_of(std::span<const iovec> parts) {
  int64_t bytes = 0;
  for (const iovec& part : parts) bytes += static_cast<int64_t>(part.iov_len);
  return bytes;
}

}  // namespace

struct ReadQueue::Ring {
  io_uring ring = {};
  ~Ring() { ::io_uring_queue_exit(&ring); }
};

ReadQueue::ReadQueue(Way way) {
  if (way == Way::kOneByOne) return;
  io_uring ring = {};
  if (::io_uring_queue_init(kDepth, &ring, 0) != 0) return;
  ring_ = std::make_unique<Ring>(ring);
}

ReadQueue::~ReadQueue() = default;

void ReadQueue::read(std::span<const Read> reads, const std::function<void(size_t, bool)>& done) {
  size_t under_way = 0;
  const auto finish_one = [&](const io_uring_cqe& completed) {
    const auto index = static_cast<size_t>(completed.user_data);
    const int64_t moved = completed.res;
    --under_way;
    // What came short, or was refused (a file system that cannot, a kernel that is out of something), is read plainly.
    done(index, moved == bytes_of(reads[index].parts) || read_one(reads[index]));
  };
  // Those that have ended; with `wait`, at least one. Entries that the kernel did not take before go with the waiting.
  const auto finish = [&](bool wait) {
    int waited = wait ? ::io_uring_submit_and_wait(&ring_->ring, 1) : 0;
    while (waited == -EINTR || waited == -EAGAIN || waited == -EBUSY) {
      waited = ::io_uring_submit_and_wait(&ring_->ring, 1);
    }
    // The memory of what is under way is the caller's: there is no returning without it.
    QUIRE_CHECK(waited >= 0);
    io_uring_cqe* completed = nullptr;
    while (under_way > 0 && ::io_uring_peek_cqe(&ring_->ring, &completed) == 0) {
      const io_uring_cqe copy = {.user_data = completed->user_data, .res = completed->res, .flags = 0};
      ::io_uring_cqe_seen(&ring_->ring, completed);
      finish_one(copy);
    }
  };
  for (size_t next = 0; next < reads.size(); ++next) {
    const Read& read = reads[next];
    if (ring_ == nullptr || read.parts.size() > IOV_MAX) {
      done(next, read_one(read));
      continue;
    }
    while (under_way == kDepth) finish(/*wait=*/true);
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_->ring);
    QUIRE_CHECK(entry != nullptr);  // there are as many as may be under way
    ::io_uring_prep_readv(entry, read.descriptor, read.parts.data(), static_cast<unsigned>(read.parts.size()),
                          static_cast<uint64_t>(read.offset));
    ::io_uring_sqe_set_data64(entry, next);
    ++under_way;
    ::io_uring_submit(&ring_->ring);
    // What the page cache had is there already: looked at while the processor's own caches still hold it.
    finish(/*wait=*/false);
  }
  while (under_way > 0) finish(/*wait=*/true);
}

}  // namespace quire::runner
