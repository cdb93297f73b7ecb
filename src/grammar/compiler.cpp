#include "grammar/compiler.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/thread_pool.h"

namespace quire::grammar {
namespace {

using Clock = std::chrono::steady_clock;
using Constraint = std::shared_ptr<const TokenConstraint>;

std::string key_of(const StructuredOutput& output) {
  std::string key(1, static_cast<char>('0' + static_cast<int>(output.kind)));
  key += output.any_whitespace ? 'w' : 'n';
  key += output.special_tokens ? 's' : 'n';
  key += output.text;
  for (const std::string& choice : output.choices) {
    key += std::to_string(choice.size()) + ':';  // no byte of a choice may look like where the next begins
    key += choice;
  }
  return key;
}

}  // namespace

struct Compiler::Impl {
  struct Waiting {
    int32_t tenant;
    Done done;
  };
  struct Job {
    std::string key;
    StructuredOutput output;
    std::vector<Waiting> waiting;  // empty once answered
    int32_t tenant = 0;            // who asked first
    int32_t thread = 0;            // that compiles it; from here on once it has begun
    Clock::time_point long_from;
    Clock::time_point deadline;
    bool begun = false;
    bool is_long = false;
    bool overdue = false;
    Clock::time_point next_look() const { return is_long ? deadline : std::min(long_from, deadline); }
  };
  struct Cached {
    std::string key;
    CompiledConstraint compiled;
  };

  Impl(const text::Tokenizer& the_tokenizer, int64_t size, std::vector<TokenId> ends, CompilerOptions the_options)
      : tokenizer(the_tokenizer), vocab_size(size), end_ids(std::move(ends)), options(the_options) {}

  void work();
  void watch();
  void finish(const std::shared_ptr<Job>& job, Result<CompiledConstraint> result);
  void enqueue_locked(const std::shared_ptr<Job>& job, int32_t tenant);
  std::shared_ptr<Job> next_locked();
  bool has_room_locked(int32_t tenant) const;
  std::vector<Waiting> take_waiting_locked(Job& job);
  bool has_time_locked(int32_t tenant) const;
  void start_thread_locked(void (Impl::*body)());
  void end_thread_locked();
  Constraint find_locked(const std::string& key);
  void keep_locked(const std::string& key, const CompiledConstraint& compiled);
  std::shared_ptr<const GrammarVocabulary> vocabulary_for(const StructuredOutput& output);

  const text::Tokenizer& tokenizer;
  const int64_t vocab_size;
  const std::vector<TokenId> end_ids;
  const CompilerOptions options;

  // With and without special tokens, made when first needed.
  struct Vocabulary {
    std::once_flag once;
    std::shared_ptr<const GrammarVocabulary> value;
  };
  Vocabulary vocabularies[2];

  mutable std::mutex mutex;
  std::condition_variable bell;        // for the threads that compile
  std::condition_variable watch_bell;  // for the one that looks at deadlines
  std::list<std::thread> threads;      // guarded by mutex, like all below
  std::list<std::thread> ended;        // to be joined by the one that watches
  int32_t num_working = 0;             // threads that compile and will go on to the next
  struct Tenant {
    std::deque<std::shared_ptr<Job>> queue;  // also of jobs that another's turn has begun
    size_t num_waiting = 0;
  };
  std::map<int32_t, Tenant> tenants;                           // those that wait
  int32_t turn = 0;                                            // the tenant whose turn was the last
  size_t num_queued = 0;                                       // jobs that have not begun
  size_t num_waiting = 0;                                      // requests
  std::unordered_map<std::string, std::shared_ptr<Job>> jobs;  // waiting or being compiled
  std::list<std::shared_ptr<Job>> begun;
  std::map<int32_t, int32_t> overdue;  // of stats.overdue, by tenant
  std::list<Cached> cached;            // the most recently used first
  std::unordered_map<std::string, std::list<Cached>::iterator> cache;
  size_t cached_bytes = 0;
  Stats stats;
  bool stopping = false;
};

std::shared_ptr<const GrammarVocabulary> Compiler::Impl::vocabulary_for(const StructuredOutput& output) {
  Vocabulary& vocabulary = vocabularies[output.special_tokens ? 1 : 0];
  std::call_once(vocabulary.once, [&] {
    vocabulary.value = std::make_shared<GrammarVocabulary>(tokenizer, vocab_size, end_ids, output.special_tokens);
  });
  return vocabulary.value;
}

Constraint Compiler::Impl::find_locked(const std::string& key) {
  const auto found = cache.find(key);
  if (found == cache.end()) return nullptr;
  cached.splice(cached.begin(), cached, found->second);
  return found->second->compiled.constraint;
}

void Compiler::Impl::keep_locked(const std::string& key, const CompiledConstraint& compiled) {
  const size_t bytes = compiled.bytes + 2 * key.size();
  if (bytes > options.cache_bytes) return;
  cached.push_front({key, compiled});
  cached.front().compiled.bytes = bytes;
  cache[key] = cached.begin();
  cached_bytes += bytes;
  while (cached_bytes > options.cache_bytes) {
    cached_bytes -= cached.back().compiled.bytes;
    cache.erase(cached.back().key);
    cached.pop_back();
  }
}

bool Compiler::Impl::has_room_locked(int32_t tenant) const {
  if (num_waiting >= options.max_waiting) return false;
  const auto found = tenants.find(tenant);
  return found == tenants.end() || found->second.num_waiting < options.max_waiting - num_waiting;
}

void Compiler::Impl::enqueue_locked(const std::shared_ptr<Job>& job, int32_t tenant) {
  auto& queue = tenants[tenant].queue;
  if (std::ranges::find(queue, job) == queue.end()) queue.push_back(job);
}

// The first one of the next tenant that has any. REQUIRES: num_queued > 0.
std::shared_ptr<Compiler::Impl::Job> Compiler::Impl::next_locked() {
  auto tenant = tenants.upper_bound(turn);
  while (true) {
    if (tenant == tenants.end()) tenant = tenants.begin();
    auto& queue = tenant->second.queue;
    while (!queue.empty() && queue.front()->begun) queue.pop_front();
    if (!queue.empty()) break;
    ++tenant;
  }
  turn = tenant->first;
  std::shared_ptr<Job> job = std::move(tenant->second.queue.front());
  tenant->second.queue.pop_front();
  --num_queued;
  return job;
}

// Of a job that is answered now.
std::vector<Compiler::Impl::Waiting> Compiler::Impl::take_waiting_locked(Job& job) {
  for (const Waiting& one : job.waiting) {
    --num_waiting;
    const auto tenant = tenants.find(one.tenant);
    if (--tenant->second.num_waiting == 0) tenants.erase(tenant);
  }
  return std::exchange(job.waiting, {});
}

bool Compiler::Impl::has_time_locked(int32_t tenant) const {
  const auto found = overdue.find(tenant);
  return found == overdue.end() || found->second < options.max_overdue + 1 - stats.overdue;
}

void Compiler::Impl::start_thread_locked(void (Impl::*body)()) {
  threads.emplace_back([this, body] { (this->*body)(); });
}

// The calling one, which returns when it lets go of the lock.
void Compiler::Impl::end_thread_locked() {
  const auto own = std::ranges::find(threads, std::this_thread::get_id(), &std::thread::get_id);
  if (own == threads.end()) return;  // the compiler goes, and joins it
  ended.splice(ended.end(), threads, own);
  watch_bell.notify_one();
}

// A thread that compiles, until the compiler goes. One that has given way more than others may not take that back: it
// ends with what took long, and another takes its place.
void Compiler::Impl::work() {
  // The tokens of everybody else go first.
  give_way_to_other_threads(GivesWay::kSomewhat);
  std::unique_lock lock(mutex);
  while (true) {
    bell.wait(lock, [this] { return stopping || num_queued > 0; });
    if (stopping) return;
    const std::shared_ptr<Job> job = next_locked();
    job->begun = true;
    job->thread = this_thread_number();
    job->long_from = Clock::now() + options.long_from;
    job->deadline = Clock::now() + options.time_limit;
    begun.push_back(job);
    watch_bell.notify_one();
    lock.unlock();
    finish(job, options.compile(job->output, options.limits, vocabulary_for(job->output)));
    lock.lock();
    if (!job->is_long) continue;
    if (!job->overdue) {
      --num_working;
    } else {
      --stats.overdue;
      if (--overdue[job->tenant] == 0) overdue.erase(job->tenant);
    }
    return end_thread_locked();
  }
}

void Compiler::Impl::finish(const std::shared_ptr<Job>& job, Result<CompiledConstraint> result) {
  std::vector<Waiting> waiting;
  {
    const std::lock_guard lock(mutex);
    begun.remove(job);
    if (!job->overdue) jobs.erase(job->key);
    if (result.ok() && !cache.contains(job->key)) keep_locked(job->key, *result);
    waiting = take_waiting_locked(*job);
  }
  for (const auto& [tenant, done] : waiting) {
    if (result.ok()) {
      done(result->constraint);
    } else {
      done(result.status());
    }
  }
}

// Lets what takes long give way, gives up what takes too long, joins threads that have ended and starts those that are
// missing: a thread gives way from its beginning as the one does that starts it.
void Compiler::Impl::watch() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    if (!ended.empty()) {
      std::list<std::thread> gone = std::move(ended);
      ended.clear();
      lock.unlock();  // they give way to everybody, in their end too
      for (std::thread& thread : gone) thread.join();
      lock.lock();
      continue;
    }
    if (num_queued > 0 && num_working < options.num_threads && stats.overdue <= options.max_overdue) {
      ++num_working;
      start_thread_locked(&Impl::work);
      continue;
    }
    std::shared_ptr<Job> first;
    for (const std::shared_ptr<Job>& job : begun) {
      if (!job->overdue && (first == nullptr || job->next_look() < first->next_look())) first = job;
    }
    if (first == nullptr) {
      watch_bell.wait(lock);
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (now < first->next_look()) {
      watch_bell.wait_until(lock, first->next_look());
      continue;
    }
    first->is_long = true;
    if (now < first->deadline) {
      give_way_to_other_threads(GivesWay::kMuch, first->thread);
      continue;
    }
    give_way_to_other_threads(GivesWay::kAll, first->thread);  // nobody waits for it any more
    first->overdue = true;
    jobs.erase(first->key);
    ++stats.overdue;
    ++overdue[first->tenant];
    --num_working;
    const std::vector<Waiting> waiting = take_waiting_locked(*first);
    lock.unlock();
    for (const auto& [tenant, done] : waiting) {
      done(deadline_exceeded("it took longer than {} ms to compile", options.time_limit.count()));
    }
    lock.lock();
  }
}

Compiler::Compiler(const text::Tokenizer& tokenizer, int64_t vocab_size, std::vector<TokenId> end_ids,
                   CompilerOptions options)
    : impl_(std::make_unique<Impl>(tokenizer, vocab_size, std::move(end_ids), options)) {
  const std::lock_guard lock(impl_->mutex);
  impl_->start_thread_locked(&Impl::watch);
}

Compiler::~Compiler() {
  std::list<std::thread> threads;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    threads.swap(impl_->threads);
    threads.splice(threads.end(), impl_->ended);
  }
  impl_->bell.notify_all();
  impl_->watch_bell.notify_all();
  for (std::thread& thread : threads) thread.join();
  for (const auto& [key, job] : impl_->jobs) {
    for (const auto& [tenant, done] : job->waiting) done(unavailable("the engine is stopping"));
  }
}

void Compiler::compile(const StructuredOutput& output, int32_t tenant, Done done) {
  std::string key = key_of(output);
  Constraint found;
  {
    const std::lock_guard lock(impl_->mutex);
    found = impl_->find_locked(key);
    if (found != nullptr) ++impl_->stats.hits;
  }
  if (found != nullptr) return done(std::move(found));
  if (Status status = check_structured_output(output, impl_->options.limits); !status.ok())
    return done(std::move(status));
  Status refused;
  {
    const std::lock_guard lock(impl_->mutex);
    Impl& impl = *impl_;
    ++impl.stats.misses;
    if (impl.stopping) {
      refused = unavailable("the engine is stopping");
    } else if (!impl.has_room_locked(tenant)) {
      refused = resource_exhausted(
          "too many requests, of all or of this tenant, wait for their structured output to be compiled; try again "
          "later");
    } else if (const auto running = impl.jobs.find(key); running != impl.jobs.end()) {
      const std::shared_ptr<Impl::Job> job = running->second;
      job->waiting.push_back({tenant, std::move(done)});
      ++impl.tenants[tenant].num_waiting;
      ++impl.num_waiting;
      // So that it comes when the first of its tenants has its turn.
      if (!job->begun) impl.enqueue_locked(job, tenant);
      return;
    } else if (impl.stats.overdue > impl.options.max_overdue || !impl.has_time_locked(tenant)) {
      refused = resource_exhausted(
          "too many structured outputs, of all or of this tenant, that took too long are still being compiled; try "
          "again later");
    } else {
      auto job = std::make_shared<Impl::Job>();
      job->key = key;
      job->output = output;
      job->tenant = tenant;
      job->waiting.push_back({tenant, std::move(done)});
      ++impl.tenants[tenant].num_waiting;
      ++impl.num_waiting;
      impl.jobs.emplace(std::move(key), job);
      impl.enqueue_locked(job, tenant);
      ++impl.num_queued;
      impl.bell.notify_one();
      if (impl.num_working < impl.options.num_threads) impl.watch_bell.notify_one();
      return;
    }
  }
  done(std::move(refused));
}

Result<Constraint> Compiler::compile(const StructuredOutput& output) {
  std::promise<Result<Constraint>> promise;
  auto future = promise.get_future();
  compile(output, [&promise](Result<Constraint> result) { promise.set_value(std::move(result)); });
  return future.get();
}

Compiler::Stats Compiler::stats() const {
  const std::lock_guard lock(impl_->mutex);
  Stats stats = impl_->stats;
  stats.cached_bytes = impl_->cached_bytes;
  stats.cached_constraints = static_cast<int64_t>(impl_->cached.size());
  return stats;
}

}  // namespace quire::grammar
