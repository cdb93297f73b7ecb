#include "cli/attention_trial.h"

#include <unistd.h>

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/log.h"
#include "cli/worker_processes.h"
#ifdef QUIRE_HAS_CUDA
#include "ops/cuda/cuda_backend.h"
#endif

namespace quire::cli {
namespace {

constexpr unsigned kMostSeconds = 60;  // a driver that translates the kernels for its card takes tens

}  // namespace

Status try_attention(const DeviceChoice& device) {
  if (device.kind != DeviceChoice::Kind::kCuda) {
    return invalid_argument("device \"{}\": its attention is quire's own: name a card, cuda or cuda:N", name(device));
  }
#ifdef QUIRE_HAS_CUDA
  alarm(kMostSeconds + 30);  // should nobody be left who ends it
  return ops::try_attention(device.card);
#else
  return unavailable("this quire was built without CUDA");
#endif
}

Status wait_for_trial(runner::WorkerProcess& process, double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kLong = std::chrono::seconds(3);
  const auto begun = Clock::now();
  bool told = false;
  while (!process.ended()) {
    const auto spent = Clock::now() - begun;
    if (spent > std::chrono::duration<double>(seconds)) return internal_error("it took more than {:g} s", seconds);
    if (spent > kLong && !told) log_info("kernels of attention are tried in a process of their own");
    told = told || spent > kLong;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (process.succeeded()) return {};
  return internal_error("its process {}", *process.ended());
}

std::function<Status()> begin_attention_trial(const EngineConfig& config, int card) {
  if (config.attention_backend != AttentionBackend::kAuto || config.batch_invariant || !is_quire()) return {};
  static std::mutex mutex;
  static std::map<int, std::shared_future<Status>> outcomes;  // by card
  const std::lock_guard lock(mutex);
  std::shared_future<Status>& outcome = outcomes[card];
  if (!outcome.valid()) {
    auto started = start_again({"quire", "try-attention", "--device", name(DeviceChoice::cuda(card))}, {});
    if (!started.ok()) {
      log_warning("kernels of attention are not tried: {}", started.status().message());
      return {};
    }
    // Whoever asks first waits.
    outcome = std::async(std::launch::deferred,
                         [process = std::move(*started)] { return wait_for_trial(*process, kMostSeconds); });
  }
  return [outcome] { return outcome.get(); };
}

}  // namespace quire::cli
