#include "grammar/compiler.h"

#include <condition_variable>
#include <deque>
#include <future>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

namespace quire::grammar {
namespace {

using Clock = std::chrono::steady_clock;
using Constraint = std::shared_ptr<const TokenConstraint>;

std::string key_of(const StructuredOutput& form) {
  std::string key(1, static_cast<char>('0' + static_cast<int>(form.kind)));
  key += form.any_whitespace ? 'w' : 'n';
  key += form.special_tokens ? 's' : 'n';
  key += form.text;
  for (const std::string& choice : form.choices) {
    key += std::to_string(choice.size()) + ':';  // no byte of a choice may look like where the next begins
    key += choice;
  }
  return key;
}

}  // namespace

struct Compiler::Impl {
  struct Job {
    std::string key;
    StructuredOutput form;
    std::vector<Done> waiting;   // empty once answered
    Clock::time_point deadline;  // from when a thread began
    bool begun = false;
    bool overdue = false;
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
  void start_thread_locked(void (Impl::*body)());
  Constraint find_locked(const std::string& key);
  void keep_locked(const std::string& key, const CompiledConstraint& compiled);
  std::shared_ptr<const GrammarVocabulary> vocabulary_for(const StructuredOutput& form);

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
  std::vector<std::thread> threads;    // guarded by mutex, like all below
  std::deque<std::shared_ptr<Job>> queue;
  std::unordered_map<std::string, std::shared_ptr<Job>> jobs;  // waiting or being compiled
  std::list<std::shared_ptr<Job>> begun;
  std::list<Cached> cached;  // the most recently used first
  std::unordered_map<std::string, std::list<Cached>::iterator> cache;
  size_t cached_bytes = 0;
  Stats stats;
  bool stopping = false;
};

std::shared_ptr<const GrammarVocabulary> Compiler::Impl::vocabulary_for(const StructuredOutput& form) {
  Vocabulary& vocabulary = vocabularies[form.special_tokens ? 1 : 0];
  std::call_once(vocabulary.once, [&] {
    vocabulary.value = std::make_shared<GrammarVocabulary>(tokenizer, vocab_size, end_ids, form.special_tokens);
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

void Compiler::Impl::start_thread_locked(void (Impl::*body)()) {
  threads.emplace_back([this, body] { (this->*body)(); });
}

// A thread that compiles, until the compiler goes; one whose form was given up ends with it, for another has taken its
// place.
void Compiler::Impl::work() {
  std::unique_lock lock(mutex);
  while (true) {
    bell.wait(lock, [this] { return stopping || !queue.empty(); });
    if (stopping) return;
    const std::shared_ptr<Job> job = std::move(queue.front());
    queue.pop_front();
    job->begun = true;
    job->deadline = Clock::now() + options.time_limit;
    begun.push_back(job);
    watch_bell.notify_one();
    lock.unlock();
    finish(job, options.compile(job->form, options.limits, vocabulary_for(job->form)));
    lock.lock();
    if (!job->overdue) continue;
    --stats.overdue;
    return;
  }
}

void Compiler::Impl::finish(const std::shared_ptr<Job>& job, Result<CompiledConstraint> result) {
  std::vector<Done> waiting;
  {
    const std::lock_guard lock(mutex);
    begun.remove(job);
    if (!job->overdue) jobs.erase(job->key);
    if (result.ok() && !cache.contains(job->key)) keep_locked(job->key, *result);
    waiting.swap(job->waiting);
  }
  for (const Done& done : waiting) {
    if (result.ok()) {
      done(result->constraint);
    } else {
      done(result.status());
    }
  }
}

// Gives up what takes too long.
void Compiler::Impl::watch() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    std::shared_ptr<Job> first;
    for (const std::shared_ptr<Job>& job : begun) {
      if (!job->overdue && (first == nullptr || job->deadline < first->deadline)) first = job;
    }
    if (first == nullptr) {
      watch_bell.wait(lock);
      continue;
    }
    if (Clock::now() < first->deadline) {
      watch_bell.wait_until(lock, first->deadline);
      continue;
    }
    first->overdue = true;
    jobs.erase(first->key);
    ++stats.overdue;
    if (stats.overdue <= options.max_overdue) start_thread_locked(&Impl::work);
    const std::vector<Done> waiting = std::exchange(first->waiting, {});
    lock.unlock();
    for (const Done& done : waiting) {
      done(deadline_exceeded("it took longer than {} ms to compile", options.time_limit.count()));
    }
    lock.lock();
  }
}

Compiler::Compiler(const text::Tokenizer& tokenizer, int64_t vocab_size, std::vector<TokenId> end_ids,
                   CompilerOptions options)
    : impl_(std::make_unique<Impl>(tokenizer, vocab_size, std::move(end_ids), options)) {}

Compiler::~Compiler() {
  std::deque<std::shared_ptr<Impl::Job>> queue;
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    queue.swap(impl_->queue);
    threads.swap(impl_->threads);
  }
  impl_->bell.notify_all();
  impl_->watch_bell.notify_all();
  for (std::thread& thread : threads) thread.join();
  for (const std::shared_ptr<Impl::Job>& job : queue) {
    for (const Done& done : job->waiting) done(unavailable("the engine is stopping"));
  }
}

void Compiler::compile(const StructuredOutput& form, Done done) {
  std::string key = key_of(form);
  Constraint found;
  {
    const std::lock_guard lock(impl_->mutex);
    found = impl_->find_locked(key);
    if (found != nullptr) ++impl_->stats.hits;
  }
  if (found != nullptr) return done(std::move(found));
  if (Status status = check_form(form, impl_->options.limits); !status.ok()) return done(std::move(status));
  Status refused;
  {
    const std::lock_guard lock(impl_->mutex);
    Impl& impl = *impl_;
    ++impl.stats.misses;
    if (impl.stopping) {
      refused = unavailable("the engine is stopping");
    } else if (const auto running = impl.jobs.find(key); running != impl.jobs.end()) {
      running->second->waiting.push_back(std::move(done));
      return;
    } else if (impl.stats.overdue > impl.options.max_overdue || impl.queue.size() >= impl.options.max_waiting) {
      refused = resource_exhausted("too many forms of structured output are being compiled; try again later");
    } else {
      if (impl.threads.empty()) {
        impl.start_thread_locked(&Impl::watch);
        for (int32_t i = 0; i < impl.options.num_threads; ++i) impl.start_thread_locked(&Impl::work);
      }
      auto job = std::make_shared<Impl::Job>();
      job->key = key;
      job->form = form;
      job->waiting.push_back(std::move(done));
      impl.jobs.emplace(std::move(key), job);
      impl.queue.push_back(std::move(job));
      impl.bell.notify_one();
      return;
    }
  }
  done(std::move(refused));
}

Result<Constraint> Compiler::compile(const StructuredOutput& form) {
  std::promise<Result<Constraint>> promise;
  auto future = promise.get_future();
  compile(form, [&promise](Result<Constraint> result) { promise.set_value(std::move(result)); });
  return future.get();
}

Compiler::Stats Compiler::stats() const {
  const std::lock_guard lock(impl_->mutex);
  Stats stats = impl_->stats;
  stats.cached_bytes = impl_->cached_bytes;
  stats.cached_forms = static_cast<int64_t>(impl_->cached.size());
  return stats;
}

}  // namespace quire::grammar
