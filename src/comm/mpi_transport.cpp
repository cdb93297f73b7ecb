#include <dlfcn.h>

#include <array>
#include <utility>

#include "base/check.h"
#include "comm/mpi_calls.h"
#include "comm/transport.h"

namespace quire::comm {
namespace {

Status in_words(const QuireMpiCalls& calls, std::string_view doing, int error) {
  std::array<char, 512> words{};
  calls.describe(error, words.data(), static_cast<int>(words.size()));
  return unavailable("MPI cannot {}: {} (error {})", doing, words.data(), error);
}

class MpiTransport final : public Transport {
 public:
  MpiTransport(const QuireMpiCalls& calls, int rank, int size) : calls_(calls), rank_(rank), size_(size) {}
  ~MpiTransport() override {
    if (!left_behind_) calls_.stop();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Result<Request> send(const void* data, int64_t bytes, int to, int tag) override {
    QUIRE_CHECK(bytes <= kMostBytes);
    Request request = nullptr;
    const int error = calls_.send(data, static_cast<int>(bytes), to, tag, &request);
    if (error != 0) return in_words(calls_, fmt::format("send to rank {}", to), error);
    return request;
  }

  Result<Request> receive(void* data, int64_t bytes, int from, int tag) override {
    QUIRE_CHECK(bytes <= kMostBytes);
    Request request = nullptr;
    const int error = calls_.receive(data, static_cast<int>(bytes), from, tag, &request);
    if (error != 0) return in_words(calls_, fmt::format("receive from rank {}", from), error);
    return request;
  }

  Result<std::optional<int64_t>> test(Request& request) override {
    int done = 0;
    int bytes = 0;
    const int error = calls_.test(&request, &done, &bytes);
    if (error != 0) return in_words(calls_, "end a message", error);
    return done != 0 ? std::optional<int64_t>(bytes) : std::nullopt;
  }

  Result<std::optional<int64_t>> probe(int from, int tag) override {
    int found = 0;
    int bytes = 0;
    const int error = calls_.probe(from, tag, &found, &bytes);
    if (error != 0) return in_words(calls_, fmt::format("look for a message of rank {}", from), error);
    return found != 0 ? std::optional<int64_t>(bytes) : std::nullopt;
  }

  void give_up(Request request) override { calls_.give_up(&request); }
  void leave_others_behind() override { left_behind_ = true; }

 private:
  const QuireMpiCalls& calls_;
  const int rank_;
  const int size_;
  bool left_behind_ = false;
};

}  // namespace

Result<std::unique_ptr<Transport>> open_mpi(const std::string& library) {
  // What MPI loads itself looks for MPI's symbols among everybody's. It stays: MPI cannot be started twice.
  void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (opened == nullptr) {
    const char* why = dlerror();
    return not_found(
        "MPI cannot be loaded ({}): install Open MPI (Debian: openmpi-bin), and take a quire that was built where "
        "libopenmpi-dev is installed (cmake -DQUIRE_MPI=ON)",
        why == nullptr ? library : why);
  }
  const auto give_calls = reinterpret_cast<decltype(&quire_mpi_calls)>(dlsym(opened, "quire_mpi_calls"));
  const QuireMpiCalls* const calls = give_calls == nullptr ? nullptr : give_calls();
  if (calls == nullptr || calls->version != kQuireMpiVersion) {
    return not_found("{} is not of this quire: take the one that was built with it", library);
  }
  int rank = 0;
  int size = 0;
  const int error = calls->start(&rank, &size);
  if (error != 0) return in_words(*calls, "start", error);
  return std::unique_ptr<Transport>(std::make_unique<MpiTransport>(*calls, rank, size));
}

}  // namespace quire::comm
