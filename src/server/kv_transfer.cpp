#include "server/kv_transfer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "base/log.h"
#include "net/kv_client.h"
#include "net/kv_leases.h"
#include "server/kv_listener.h"

namespace quire::server {
namespace {

using TransferClock = std::chrono::steady_clock;

constexpr int kPullThreads = 4;
constexpr size_t kMostPulls = 1024;  // that wait
constexpr std::chrono::seconds kTellEvery{5};

// What became of a request that was to fetch.
enum class Pull {
  kFetched,
  kPeer,  // from here on: computed anew
  kAdapter,
  kConnection,
  kTimeout,
  kProtocol,
  kSecret,
  kLease,
  kModel,
  kText,
  kChecksum,
  kBusy,
  kRoom,
  kCount
};
constexpr std::array<const char*, static_cast<size_t>(Pull::kCount)> kPullNames = {
    "fetched", "peer",  "adapter", "connection", "timeout", "protocol", "secret",
    "lease",   "model", "text",    "checksum",   "busy",    "room"};
constexpr std::array<const char*, static_cast<size_t>(Pull::kCount)> kPullReasons = {
    "",
    "remote_host and remote_port are none of this server's peers",
    "it names an adapter, whose blocks are not transferred",
    "the peer could not be connected to, or the connection broke",
    "it took longer than timeout_seconds",
    "the peer does not speak this protocol, or not this version",
    "the peer has another secret",
    "the lease is over, not known, or another's",
    "the peer has another model, or other settings",
    "the blocks are of another text, or under another cache_salt",
    "a block's checksum is wrong",
    "too many transfers wait",
    "host memory has no room for the blocks"};

Pull pull_of(net::KvOutcome outcome) {
  switch (outcome) {
    case net::KvOutcome::kFetched:
      return Pull::kFetched;
    case net::KvOutcome::kConnection:
      return Pull::kConnection;
    case net::KvOutcome::kTimeout:
      return Pull::kTimeout;
    case net::KvOutcome::kProtocol:
      return Pull::kProtocol;
    case net::KvOutcome::kSecret:
      return Pull::kSecret;
    case net::KvOutcome::kLease:
      return Pull::kLease;
    case net::KvOutcome::kModel:
      return Pull::kModel;
    case net::KvOutcome::kText:
      return Pull::kText;
    case net::KvOutcome::kChecksum:
      return Pull::kChecksum;
  }
  return Pull::kProtocol;
}

// Threads that do one job after the other. What waits at the end is done before it ends.
class JobThreads {
 public:
  explicit JobThreads(int count) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { loop(); });
  }
  ~JobThreads() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      bell_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }
  JobThreads(const JobThreads&) = delete;
  JobThreads& operator=(const JobThreads&) = delete;

  // False: `most` wait already.
  bool post(std::function<void()> job, size_t most) {
    const std::lock_guard lock(mutex_);
    if (jobs_.size() >= most) return false;
    jobs_.push_back(std::move(job));
    bell_.notify_one();
    return true;
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      bell_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      {
        const std::function<void()> job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job();
      }
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable bell_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Bytes of blocks on their way in, of all pulls together. Shared with what the engine calls back.
class IncomingBytes {
 public:
  explicit IncomingBytes(int64_t most) : most_(most) {}
  bool fits(int64_t bytes) const { return bytes <= most_; }
  bool take(int64_t bytes, TransferClock::time_point until) {
    std::unique_lock lock(mutex_);
    if (!bell_.wait_until(lock, until, [&] { return bytes <= most_ - taken_; })) return false;
    taken_ += bytes;
    return true;
  }
  void give_back(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    taken_ -= bytes;
    bell_.notify_all();
  }

 private:
  const int64_t most_;
  std::mutex mutex_;
  std::condition_variable bell_;
  int64_t taken_ = 0;
};

}  // namespace

struct KvTransfer::Impl {
  Impl(KvTransferConfig the_config, Metrics& metrics);

  void count(Pull pull);
  void lease(KvPrefix prefix, const std::string& salt, std::string fingerprint, size_t block_size,
             const std::function<void(boost::json::value)>& done);
  struct Job {
    engine::Engine* engine;
    KvTransferParams params;
    Text text;
    std::function<void()> done;
    TransferClock::time_point until;
  };
  Pull check(const Job& job) const;
  int64_t bytes_of(const Job& job) const;
  void pull(Job job);
  void take_in(Job job, KvPrefix prefix, int64_t bytes);
  void end(const Job& job, Pull result) {
    count(result);
    job.done();
  }

  const KvTransferConfig config;
  std::array<Counter*, static_cast<size_t>(Pull::kCount)> pulls;
  Counter* blocks_in;
  Counter* blocks_out;
  Counter* made;
  Counter* fetched;
  Counter* expired;
  Counter* refused;
  Counter* no_room;
  Gauge* lease_bytes;
  std::mutex mutex;
  TransferClock::time_point tell_at;  // guarded by mutex, like all below
  int64_t untold = 0;
  const std::shared_ptr<net::KvLeases> leases;
  IncomingBytes incoming;
  std::unique_ptr<KvListener> listener;
  std::unique_ptr<JobThreads> short_jobs;  // last, both: they use all of the above
  std::unique_ptr<JobThreads> pulling;
};

KvTransfer::Impl::Impl(KvTransferConfig the_config, Metrics& metrics)
    : config(std::move(the_config)),
      leases(std::make_shared<net::KvLeases>(net::KvLeases::Options{
          .engine_id = config.engine_id, .most_bytes = config.memory_bytes, .duration = config.lease_time})),
      incoming(config.memory_bytes) {
  for (size_t i = 0; i < pulls.size(); ++i) {
    pulls[i] = &metrics.counter("quire:kv_transfer_pulls_total",
                                "Requests that were to fetch their prompt's blocks from another instance, by what came "
                                "of it; all but \"fetched\" were computed anew.",
                                {{"result", kPullNames[i]}});
  }
  const auto blocks = [&](const char* direction) {
    return &metrics.counter("quire:kv_transfer_blocks_total", "Blocks of the prefix cache sent to other instances.",
                            {{"direction", direction}});
  };
  blocks_in = blocks("in");
  blocks_out = blocks("out");
  const auto lease_counter = [&](const char* event) {
    return &metrics.counter(
        "quire:kv_transfer_leases_total",
        "Leases of a prompt's blocks: made, fetched, expired before they were; refused to who asked, "
        "and not made for want of room.",
        {{"event", event}});
  };
  made = lease_counter("made");
  fetched = lease_counter("fetched");
  expired = lease_counter("expired");
  refused = lease_counter("refused");
  no_room = lease_counter("no_room");
  lease_bytes = &metrics.gauge("quire:kv_transfer_lease_bytes", "Memory of blocks that wait to be fetched.");
}

// A line every few seconds at most, whatever clients send.
void KvTransfer::Impl::count(Pull pull) {
  pulls[static_cast<size_t>(pull)]->increment();
  if (pull == Pull::kFetched) return;
  int64_t before = 0;
  {
    const std::lock_guard lock(mutex);
    const auto now = TransferClock::now();
    ++untold;
    if (now < tell_at) return;
    tell_at = now + kTellEvery;
    before = std::exchange(untold, 0) - 1;
  }
  log_warning("kv transfer: a prompt is computed anew: {}{}", kPullReasons[static_cast<size_t>(pull)],
              before > 0 ? "; so were " + std::to_string(before) + " before it" : "");
}

// ---- who computed ----

void KvTransfer::Impl::lease(KvPrefix prefix, const std::string& salt, std::string fingerprint, size_t block_size,
                             const std::function<void(boost::json::value)>& done) {
  const net::KvBytes16 text = net::kv_text_hash(salt, prefix.tokens);
  const auto num_blocks = static_cast<int64_t>(prefix.tokens.size() / block_size);
  const auto kept = leases->add(std::move(prefix), text, std::move(fingerprint), TransferClock::now());
  lease_bytes->set(static_cast<double>(leases->bytes()));
  if (kept == nullptr) {
    no_room->increment();
    return done(nullptr);
  }
  made->increment();
  KvTransferParams params;
  params.engine_id = leases->engine_id();
  params.host = config.address;
  params.port = listener->port();
  params.num_blocks = num_blocks;
  params.lease = kept->id;
  params.generation = kept->generation;
  params.text = text;
  done(params.for_decode());
}

void KvTransfer::hand_over(engine::Engine& engine, Text text, std::function<void(boost::json::value)> done) {
  if (text.has_adapter) return done(nullptr);
  const auto block_size = static_cast<size_t>(engine.memory().block_size);
  engine.export_prefix(std::move(text.prompt), text.cache_salt,
                       [impl = impl_.get(), salt = text.cache_salt, fingerprint = engine.memory().kv_fingerprint,
                        block_size, done = std::move(done)](Result<KvPrefix> exported) {
                         if (!exported.ok() || exported->blocks.empty()) return done(nullptr);
                         auto prefix = std::make_shared<KvPrefix>(std::move(*exported));
                         impl->short_jobs->post(
                             [=] { impl->lease(std::move(*prefix), salt, fingerprint, block_size, done); }, SIZE_MAX);
                       });
}

// ---- who goes on ----

int64_t KvTransfer::Impl::bytes_of(const Job& job) const {
  const MemoryPlan& memory = job.engine->memory();
  return job.params.num_blocks * static_cast<int64_t>(memory.windows.size()) * memory.block_bytes;
}

// What can be said without asking.
Pull KvTransfer::Impl::check(const Job& job) const {
  if (job.text.has_adapter) return Pull::kAdapter;
  const KvTransferConfig::Peer peer{.address = job.params.host, .port = job.params.port};
  if (std::ranges::find(config.peers, peer) == config.peers.end()) return Pull::kPeer;
  const int64_t num_tokens = job.params.num_blocks * job.engine->memory().block_size;
  if (num_tokens > std::ssize(job.text.prompt)) return Pull::kText;
  const auto beginning = std::span(job.text.prompt).first(static_cast<size_t>(num_tokens));
  if (net::kv_text_hash(job.text.cache_salt, beginning) != job.params.text) return Pull::kText;
  return incoming.fits(bytes_of(job)) ? Pull::kFetched : Pull::kRoom;
}

void KvTransfer::Impl::pull(Job job) {
  const int64_t bytes = bytes_of(job);
  if (TransferClock::now() >= job.until || !incoming.take(bytes, job.until)) return end(job, Pull::kBusy);
  const MemoryPlan& memory = job.engine->memory();
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(job.until - TransferClock::now());
  net::KvPulled pulled = net::pull_blocks({.address = job.params.host,
                                           .port = job.params.port,
                                           .secret = config.secret,
                                           .timeout = std::max(left, std::chrono::milliseconds(1)),
                                           .ask = {.nonce = {},
                                                   .lease = job.params.lease,
                                                   .generation = job.params.generation,
                                                   .text = job.params.text,
                                                   .engine_id = job.params.engine_id,
                                                   .fingerprint = memory.kv_fingerprint,
                                                   .mac = {}},
                                           .prompt = job.text.prompt,
                                           .num_blocks = static_cast<size_t>(job.params.num_blocks),
                                           .block_size = static_cast<size_t>(memory.block_size),
                                           .num_groups = memory.windows.size(),
                                           .block_bytes = static_cast<uint64_t>(memory.block_bytes)});
  if (pulled.outcome != net::KvOutcome::kFetched) {
    incoming.give_back(bytes);
    return end(job, pull_of(pulled.outcome));
  }
  take_in(std::move(job), std::move(pulled.prefix), bytes);
}

void KvTransfer::Impl::take_in(Job job, KvPrefix prefix, int64_t bytes) {
  engine::Engine& engine = *job.engine;
  const auto shared = std::make_shared<Job>(std::move(job));
  engine.import_prefix(shared->text.prompt, shared->text.cache_salt, std::move(prefix),
                       [this, shared, bytes](const Result<int64_t>& num_blocks) {
                         incoming.give_back(bytes);
                         Pull result = Pull::kFetched;
                         if (num_blocks.ok()) {
                           blocks_in->increment(static_cast<double>(*num_blocks));
                         } else {
                           const bool is_other = num_blocks.status().code() == StatusCode::kInvalidArgument;
                           result = is_other ? Pull::kText : Pull::kRoom;
                         }
                         // The engine's thread has steps to make.
                         short_jobs->post([this, shared, result] { end(*shared, result); }, SIZE_MAX);
                       });
}

void KvTransfer::fetch(engine::Engine& engine, const KvTransferParams& params, Text text, std::function<void()> done) {
  Impl::Job job{.engine = &engine,
                .params = params,
                .text = std::move(text),
                .done = std::move(done),
                .until = TransferClock::now() + impl_->config.timeout};
  if (const Pull pull = impl_->check(job); pull != Pull::kFetched) return impl_->end(job, pull);
  const auto shared = std::make_shared<Impl::Job>(std::move(job));
  const bool posted =
      impl_->pulling->post([impl = impl_.get(), shared] { impl->pull(std::move(*shared)); }, kMostPulls);
  if (!posted) impl_->end(*shared, Pull::kBusy);
}

// ---- both ----

Result<std::shared_ptr<KvTransfer>> KvTransfer::start(KvTransferConfig config, Metrics& metrics) {
  auto impl = std::make_unique<Impl>(std::move(config), metrics);
  Impl* one = impl.get();
  if (one->config.role.sends) {
    const auto tell_bytes = [one] { one->lease_bytes->set(static_cast<double>(one->leases->bytes())); };
    QUIRE_ASSIGN_OR_RETURN(
        impl->listener, KvListener::start({.address = one->config.address,
                                           .port = one->config.port,
                                           .secret = one->config.secret,
                                           .timeout = std::max(one->config.timeout, std::chrono::milliseconds(1000))},
                                          one->leases,
                                          {.expired =
                                               [one, tell_bytes](int64_t leases) {
                                                 one->expired->increment(static_cast<double>(leases));
                                                 tell_bytes();
                                               },
                                           .refused = [one](net::KvRefusal) { one->refused->increment(); },
                                           .sent =
                                               [one, tell_bytes](int64_t blocks) {
                                                 one->fetched->increment();
                                                 one->blocks_out->increment(static_cast<double>(blocks));
                                                 tell_bytes();
                                               }}));
    log_info("kv transfer: blocks of prompts are kept for other instances on {} port {}, as {}", one->config.address,
             impl->listener->port(), one->config.engine_id);
  }
  impl->short_jobs = std::make_unique<JobThreads>(1);
  impl->pulling = std::make_unique<JobThreads>(one->config.role.receives ? kPullThreads : 0);
  return std::shared_ptr<KvTransfer>(new KvTransfer(std::move(impl)));
}

KvTransfer::KvTransfer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvTransfer::~KvTransfer() = default;

KvTransferRole KvTransfer::role() const {
  return impl_->config.role;
}

uint16_t KvTransfer::port() const {
  return impl_->listener == nullptr ? 0 : impl_->listener->port();
}

}  // namespace quire::server
