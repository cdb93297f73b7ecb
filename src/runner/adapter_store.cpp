#include "runner/adapter_store.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "checkpoint/adapter_file.h"
#include "runner/adapter_memory.h"
#include "types/memory_plan.h"

namespace quire::runner {
namespace {

// One adapter under one name, in one place. All under the store's lock.
struct StoredAdapter {
  std::string name;
  std::string path;
  std::shared_ptr<const Adapter> adapter;  // nullptr: not loaded
  int32_t number = 0;                      // of the version loaded last
  int32_t rank = 0;
  int64_t bytes = 0;
  uint64_t revision = 0;
  int32_t users = 0;
  uint64_t last_used = 0;
  bool known = false;  // it has its name
  bool lost = false;   // by workers that computed with it: its number is not used again
};

// What is to be read, and as whose number: the same files as those of the last version are the same adapter, also for
// what was computed with it; others get `fresh`.
struct ToRead {
  std::string path;
  int32_t last_number = 0;  // 0: there is no last version
  uint64_t last_revision = 0;
  int32_t fresh = 0;
};

struct ReadAdapter {
  Result<std::shared_ptr<Adapter>> adapter;
  int32_t number;
  double seconds;  // that it took
};

Status engine_stops() {
  return unavailable("the engine is shutting down");
}

Status unknown_adapter(std::string_view name) {
  return not_found("there is no adapter `{}`", name).with_param("model");
}

bool is_below_folder(const std::filesystem::path& file, const std::filesystem::path& folder) {
  const auto [in_folder, in_file] = std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
  return in_folder == folder.end() && in_file != file.end();
}

}  // namespace

int64_t AdapterLimits::device_bytes() const {
  return most_bytes + most_loaded * static_cast<int64_t>(AdapterMemory::kAlign);
}

struct AdapterStore::State : std::enable_shared_from_this<AdapterStore::State> {
  using Entry = std::shared_ptr<StoredAdapter>;
  struct Waiting {
    Entry entry;
    Done done;
    bool names = false;     // the entry gets its name when it is loaded
    bool replaces = false;  // also where another one has it
  };
  class Lease;

  // the_backend: nullptr where the adapters are elsewhere, which are read one after the other.
  State(Load the_load, AdapterLimits the_limits, ops::Backend* the_backend, const AdapterHost& host)
      : make(std::move(the_load)),
        limits(std::move(the_limits)),
        backend(the_backend),
        allocator(host.allocator),
        file_allocator(host.file_allocator) {
    if (backend == nullptr || backend->computes_in_host_memory()) return;
    const auto bytes = static_cast<size_t>(limits.device_bytes());
    device_memory = std::make_unique<AdapterMemory>(backend->allocator(), bytes);
  }

  // All with the lock held.
  std::shared_ptr<const AdapterLease> lend(const Entry& entry);
  bool has_room(int64_t bytes) const;
  bool drop_one();
  bool make_room(int64_t bytes);
  void drop(StoredAdapter& entry);
  Entry find(std::string_view name);
  void forget_failed(const Waiting& waiting);
  Status name_taken(const Waiting& waiting) const;

  void run();
  void prepare_next(std::unique_lock<std::mutex>& lock);
  // Serves the first that waits, without the lock where that takes long. False: it has to wait for room.
  bool serve(std::unique_lock<std::mutex>& lock);
  Status load(Waiting& waiting, std::unique_lock<std::mutex>& lock);
  std::future<ReadAdapter> begin_reading(const StoredAdapter& entry, std::launch how);
  void begin_next();
  ReadAdapter read(const ToRead& what) const;  // without the lock
  Status place(std::unique_lock<std::mutex>& lock);
  Result<bool> take_place(Adapter& adapter);  // without the lock

  const Load make;
  const AdapterLimits limits;
  ops::Backend* const backend;
  const std::shared_ptr<KeepingAllocator> allocator;  // AdapterHost's, as is the next
  const std::shared_ptr<Allocator> file_allocator;
  std::unique_ptr<AdapterMemory> device_memory;  // of a device that has its own, else nullptr; outlives adapters

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, Entry, std::less<>> entries;  // by name
  std::vector<Entry> loaded;
  std::unordered_map<int32_t, const Adapter*> leased;  // by number
  std::deque<Waiting> waiting;
  std::shared_ptr<Adapter> read_ahead;  // of the first that waits, for which there is no room yet
  int32_t read_ahead_number = 0;
  // Another that waits, which is read beside the first: next to threads that compute, two that read have twice as much
  // of the processor as one. Of the store's thread. entry: nullptr, there is none; else it waits.
  struct Beside {
    Entry entry;
    std::future<ReadAdapter> result;
  } beside;
  bool blocked = false;  // the first that waits needs room: who comes now waits behind it, so that there will be some
  bool stopping = false;
  int32_t last_number = 0;
  uint64_t clock = 0;
  uint64_t num_dropped = 0;
  uint64_t loads = 0;
  double load_seconds = 0;
  std::thread thread;
};

class AdapterStore::State::Lease final : public AdapterLease {
 public:
  Lease(std::shared_ptr<State> state, Entry entry)
      : state_(std::move(state)), entry_(std::move(entry)), adapter_(entry_->adapter), number_(entry_->number) {}
  ~Lease() override {
    const std::lock_guard lock(state_->mutex);
    adapter_.reset();  // who is told that nobody uses it finds its memory free
    if (--entry_->users > 0) return;
    state_->leased.erase(number_);
    if (!entry_->known) state_->drop(*entry_);
    state_->changed.notify_all();
  }
  const Adapter& adapter() const override { return *adapter_; }
  int32_t number() const override { return number_; }

 private:
  std::shared_ptr<State> state_;
  Entry entry_;
  std::shared_ptr<const Adapter> adapter_;
  int32_t number_;
};

std::shared_ptr<const AdapterLease> AdapterStore::State::lend(const Entry& entry) {
  entry->last_used = ++clock;
  if (entry->users++ == 0) leased.emplace(entry->number, entry->adapter.get());
  return std::make_shared<Lease>(shared_from_this(), entry);
}

bool AdapterStore::State::has_room(int64_t bytes) const {
  int64_t all = bytes;
  for (const Entry& entry : loaded) all += entry->bytes;
  return static_cast<int32_t>(loaded.size()) < limits.most_loaded && all <= limits.most_bytes;
}

// Of those that nobody uses the one that was wanted longest ago. False: there is none.
bool AdapterStore::State::drop_one() {
  StoredAdapter* next = nullptr;
  for (const Entry& entry : loaded) {
    if (entry->users == 0 && (next == nullptr || entry->last_used < next->last_used)) next = entry.get();
  }
  if (next == nullptr) return false;
  drop(*next);
  return true;
}

// As many go as it takes.
bool AdapterStore::State::make_room(int64_t bytes) {
  while (!has_room(bytes)) {
    if (!drop_one()) return false;
  }
  return true;
}

void AdapterStore::State::drop(StoredAdapter& entry) {
  ++num_dropped;
  std::erase_if(loaded, [&](const Entry& other) { return other.get() == &entry; });
  entry.adapter.reset();
}

// What the folder has gets its name when somebody asks for it.
AdapterStore::State::Entry AdapterStore::State::find(std::string_view name) {
  const auto found = entries.find(name);
  if (found != entries.end()) return found->second;
  if (limits.folder.empty()) return nullptr;
  const Result<std::string> path = path_in_folder(limits.folder, name);
  if (!path.ok()) return nullptr;
  auto entry = std::make_shared<StoredAdapter>();
  entry->name = name;
  entry->path = *path;
  entry->known = true;
  entries.emplace(entry->name, entry);
  return entry;
}

// A name that the folder gave is not kept for what cannot be read: it may be right the next time.
void AdapterStore::State::forget_failed(const Waiting& failed) {
  const auto found = entries.find(failed.entry->name);
  if (failed.names || found == entries.end() || found->second != failed.entry) return;
  if (failed.entry->number == 0) {
    failed.entry->known = false;
    entries.erase(found);
  }
}

Status AdapterStore::State::name_taken(const Waiting& asked) const {
  if (!asked.names || asked.replaces || !entries.contains(asked.entry->name)) return {};
  return invalid_argument("an adapter `{}` is loaded already: unload it first, or replace it (load_inplace)",
                          asked.entry->name)
      .with_param("lora_name");
}

void AdapterStore::State::run() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    if (waiting.empty()) {
      prepare_next(lock);
      if (waiting.empty() && !stopping) changed.wait(lock);
      continue;
    }
    blocked = !serve(lock);
    if (blocked && !stopping) changed.wait(lock);  // it may have been told to stop while it was reading
  }
  std::deque<Waiting> dropped;
  dropped.swap(waiting);
  read_ahead.reset();
  lock.unlock();
  beside = {};  // when it has ended
  for (const Waiting& one : dropped) one.done(engine_stops());
}

// Nobody waits: memory for another like the last, as far as there may be one more, so that it need not be taken while
// somebody does: to take it can be several times as long as to read the file.
void AdapterStore::State::prepare_next(std::unique_lock<std::mutex>& lock) {
  if (allocator == nullptr || loaded.empty()) return;
  const int64_t bytes = loaded.back()->bytes;
  if (!has_room(bytes)) return;
  lock.unlock();
  allocator->prepare(static_cast<size_t>(bytes));
  lock.lock();
}

bool AdapterStore::State::serve(std::unique_lock<std::mutex>& lock) {
  Waiting& first = waiting.front();
  Status status = name_taken(first);
  if (status.ok() && first.entry->adapter == nullptr) {
    if (!make_room(0)) return false;
    status = load(first, lock);
    if (stopping) return true;
    if (status.ok() && first.entry->adapter == nullptr) return false;  // it is read and waits for room
  }
  LeaseOr lease = status.ok() ? engine_stops() : status;
  Waiting served = std::move(first);
  waiting.pop_front();
  if (status.ok()) {
    if (served.names) {
      Entry& place = entries[served.entry->name];
      if (place != nullptr) {
        place->known = false;
        if (place->users == 0) drop(*place);
      }
      place = served.entry;
      place->known = true;
    }
    lease = lend(served.entry);
  } else {
    forget_failed(served);
  }
  lock.unlock();
  served.done(std::move(lease));
  if (beside.entry == served.entry) beside = {};  // whose name was taken; when it has ended
  lease = engine_stops();                         // let go of it without the lock
  served = {};
  lock.lock();
  return true;
}

Status AdapterStore::State::load(Waiting& first, std::unique_lock<std::mutex>& lock) {
  const Entry entry = first.entry;
  if (read_ahead == nullptr) {
    // Here, in get(), if it is not under way.
    std::future<ReadAdapter> reading =
        beside.entry == entry ? std::exchange(beside, {}).result : begin_reading(*entry, std::launch::deferred);
    begin_next();
    lock.unlock();
    ReadAdapter found = reading.get();
    Result<std::shared_ptr<Adapter>>& made = found.adapter;
    if (!made.ok()) log_warning("adapter {}: {}", entry->name, made.status().message());
    lock.lock();
    ++loads;
    load_seconds += found.seconds;
    read_ahead_number = found.number;
    if (!made.ok()) return made.status();
    if ((*made)->bytes() > limits.most_bytes) {
      return invalid_argument(
          "the adapter takes {}, and all adapters together may take {}: raise --max-cpu-loras or --max-lora-rank",
          format_bytes((*made)->bytes()), format_bytes(limits.most_bytes));
    }
    read_ahead = std::move(*made);
    log_info("adapter {}: rank {}, {} in {:.1f} ms", entry->name, read_ahead->rank(), format_bytes(read_ahead->bytes()),
             found.seconds * 1e3);
  }
  if (!make_room(read_ahead->bytes())) return {};
  if (!read_ahead->has_place()) {
    const Status placed = place(lock);
    if (!placed.ok()) read_ahead.reset();
    if (!placed.ok() || !read_ahead->has_place() || stopping) return placed;
  }
  entry->number = read_ahead_number;
  entry->lost = false;
  entry->revision = read_ahead->revision();
  entry->rank = read_ahead->rank();
  entry->bytes = read_ahead->bytes();
  entry->adapter = std::move(read_ahead);
  read_ahead.reset();
  loaded.push_back(entry);
  return {};
}

std::future<ReadAdapter> AdapterStore::State::begin_reading(const StoredAdapter& entry, std::launch how) {
  const ToRead what{.path = entry.path,
                    .last_number = entry.lost ? 0 : entry.number,
                    .last_revision = entry.revision,
                    .fresh = ++last_number};
  return std::async(how, [this, what] { return read(what); });
}

// The next behind the first that is not in memory, unless one is being read already.
void AdapterStore::State::begin_next() {
  if (backend == nullptr || beside.entry != nullptr) return;
  const auto next = std::ranges::find_if(
      waiting, [&](const Waiting& one) { return one.entry->adapter == nullptr && one.entry != waiting.front().entry; });
  if (next == waiting.end()) return;
  // Where no thread can be made it is read when its turn comes.
  beside = {next->entry, begin_reading(*next->entry, std::launch::async | std::launch::deferred)};
}

ReadAdapter AdapterStore::State::read(const ToRead& what) const {
  const auto start = std::chrono::steady_clock::now();
  const auto file = checkpoint::AdapterFile::open(what.path, file_allocator);
  const bool is_last = file.ok() && what.last_number != 0 && (*file)->revision == what.last_revision;
  const int32_t number = is_last ? what.last_number : what.fresh;
  auto made = file.ok() ? make(**file, what.path, number) : Result<std::shared_ptr<Adapter>>(file.status());
  return {std::move(made), number, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

// Copies what was read to the device's memory, or has the ranks do so. Where that is in pieces more leave than room for
// bytes asks for; where none may leave it has no place yet.
Status AdapterStore::State::place(std::unique_lock<std::mutex>& lock) {
  while (true) {
    const uint64_t dropped_before = num_dropped;
    lock.unlock();
    const Result<bool> placed = take_place(*read_ahead);
    lock.lock();
    if (!placed.ok()) return placed.status();
    if (*placed || stopping) return {};
    // Nobody will tell once more of what has left meanwhile.
    if (num_dropped == dropped_before && !drop_one()) return {};
  }
}

Result<bool> AdapterStore::State::take_place(Adapter& adapter) {
  if (adapter.is_elsewhere()) return adapter.take_place_elsewhere();
  if (!adapter.take_place(*device_memory)) return false;
  QUIRE_RETURN_IF_ERROR(adapter.upload(*backend));
  return true;
}

AdapterStore::AdapterStore(AdapterHost host, AdapterLimits limits, ops::Backend& backend)
    : state_(
          std::make_shared<State>([host, &backend](const checkpoint::AdapterFile& file, const std::string& /*path*/,
                                                   int32_t /*number*/) { return Adapter::read(file, host, backend); },
                                  std::move(limits), &backend, host)) {
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

AdapterStore::AdapterStore(Load load, AdapterLimits limits)
    : state_(std::make_shared<State>(std::move(load), std::move(limits), /*the_backend=*/nullptr, AdapterHost{})) {
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

AdapterStore::~AdapterStore() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

void AdapterStore::load(const std::string& name, const std::string& path, bool replace, const Done& done) {
  if (name.empty()) return done(invalid_argument("an adapter's name is empty").with_param("lora_name"));
  auto entry = std::make_shared<StoredAdapter>();
  entry->name = name;
  entry->path = path;
  State::Waiting asked{.entry = std::move(entry), .done = done, .names = true, .replaces = replace};
  Status refused;
  {
    const std::lock_guard lock(state_->mutex);
    refused = state_->stopping ? engine_stops() : state_->name_taken(asked);
    if (refused.ok()) state_->waiting.push_back(std::move(asked));
  }
  if (!refused.ok()) return done(refused);
  state_->changed.notify_all();
}

Status AdapterStore::unload(std::string_view name) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->entries.find(name);
  if (found == state_->entries.end()) {
    return not_found("there is no adapter `{}`", name).with_param("lora_name");
  }
  const State::Entry entry = found->second;
  state_->entries.erase(found);
  entry->known = false;
  if (entry->users == 0) state_->drop(*entry);
  state_->changed.notify_all();
  return {};
}

void AdapterStore::acquire(std::string_view name, const Done& done) {
  LeaseOr lease = engine_stops();
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->stopping) {
      const State::Entry entry = state_->find(name);
      if (entry == nullptr) {
        lease = unknown_adapter(name);
      } else if (entry->adapter != nullptr && !state_->blocked) {
        lease = state_->lend(entry);
      } else {
        state_->waiting.push_back({.entry = entry, .done = done});
        state_->changed.notify_all();
        return;
      }
    }
  }
  done(std::move(lease));
}

bool AdapterStore::knows(std::string_view name) const {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->entries.contains(name)) return true;
  }
  return !state_->limits.folder.empty() && path_in_folder(state_->limits.folder, name).ok();
}

const Adapter* AdapterStore::in_use(int32_t number) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->leased.find(number);
  return found == state_->leased.end() ? nullptr : found->second;
}

void AdapterStore::lose(int32_t number) {
  const std::lock_guard lock(state_->mutex);
  const auto found = std::ranges::find(state_->loaded, number, &StoredAdapter::number);
  if (found != state_->loaded.end()) {
    (*found)->lost = true;
    state_->drop(**found);
  }
  state_->changed.notify_all();
}

std::vector<AdapterInfo> AdapterStore::list() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<AdapterInfo> all;
  for (const auto& [name, entry] : state_->entries) {
    all.push_back({.name = name,
                   .path = entry->path,
                   .loaded = entry->adapter != nullptr,
                   .users = entry->users,
                   .rank = entry->rank,
                   .bytes = entry->bytes,
                   .revision = entry->revision});
  }
  return all;
}

AdapterStore::Statistics AdapterStore::statistics() const {
  const std::lock_guard lock(state_->mutex);
  Statistics all{.num_loaded = static_cast<int32_t>(state_->loaded.size()),
                 .num_waiting = static_cast<int32_t>(state_->waiting.size()),
                 .loads = state_->loads,
                 .load_seconds = state_->load_seconds};
  for (const State::Entry& entry : state_->loaded) all.bytes += entry->bytes;
  return all;
}

const AdapterLimits& AdapterStore::limits() const {
  return state_->limits;
}

bool AdapterStore::has_memory() const {
  return state_->device_memory == nullptr || state_->device_memory->has_memory();
}

Result<std::string> path_in_folder(const std::string& folder, std::string_view name) {
  namespace fs = std::filesystem;
  const bool plain = !name.empty() && name != "." && name != ".." &&
                     name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
  if (!plain) return invalid_argument("{:?} is not a plain name in the folder of adapters", name.substr(0, 96));
  std::error_code error;
  const fs::path real_folder = fs::canonical(folder, error);
  if (error) return not_found("{}: the folder of adapters cannot be read: {}", folder, error.message());
  const fs::path real = fs::canonical(real_folder / fs::path(name), error);
  if (error) return not_found("there is no adapter {:?} in the folder of adapters", name.substr(0, 96));
  if (!is_below_folder(real, real_folder)) {
    return invalid_argument("{:?} is a link that leads out of the folder of adapters", name.substr(0, 96));
  }
  return real.string();
}

}  // namespace quire::runner
