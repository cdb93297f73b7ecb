#include "server/models.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "base/host_memory.h"
#include "base/log.h"
#include "server/admin.h"
#include "server/api_error.h"
#include "types/memory_plan.h"

namespace quire::server {

struct Models::Model {
  ModelSource source;
  // Under the lock.
  State state = State::kUnloaded;
  std::shared_ptr<engine::Engine> engine;
  std::unique_ptr<const Generator> generator;
  int64_t leases = 0;
  Clock::time_point used;  // when it was last wanted
  std::vector<Use> waiting;
  // The adapters that it had when it was unloaded: it has them again when it is loaded. nullopt: it never was.
  std::optional<std::vector<AdapterInfo>> adapters;

  const std::string& name() const { return source.names.front(); }
  bool takes_memory() const { return engine != nullptr || state == State::kLoading || state == State::kLeaving; }
};

class Models::Held final : public Lease {
 public:
  Held(Models& models, Model& model) : models_(models), model_(model) {}
  ~Held() override { models_.give_back(model_); }
  const Generator& generator() const override { return *model_.generator; }

 private:
  Models& models_;
  Model& model_;
};

namespace {

const Status& shutting_down() {
  static const Status status = unavailable("The server is shutting down.");
  return status;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// beginning and end

Models::Models(const ServerConfig& config, Tenants& tenants, Metrics& metrics, std::vector<ModelSource> sources)
    : config_(config),
      tenants_(tenants),
      metrics_(metrics),
      models_([&] {
        std::vector<std::unique_ptr<Model>> models;
        for (ModelSource& source : sources)
          models.push_back(std::make_unique<Model>(Model{.source = std::move(source)}));
        return models;
      }()),
      waiting_(std::make_shared<Load>(tenants.weights(), 0, static_cast<int64_t>(config.max_queued_work))) {}

Result<std::unique_ptr<Models>> Models::start(const ServerConfig& config, Tenants& tenants, Metrics& metrics,
                                              std::vector<ModelSource> sources) {
  std::unique_ptr<Models> models(new Models(config, tenants, metrics, std::move(sources)));
  QUIRE_RETURN_IF_ERROR(models->check());
  {
    std::unique_lock lock(models->mutex_);
    QUIRE_RETURN_IF_ERROR(models->load(*models->models_.front(), lock));
  }
  models->thread_ = std::thread([&models = *models] { models.run(); });
  return models;
}

Status Models::check() const {
  if (models_.empty()) return invalid_argument("The server needs a model.");
  std::set<std::string> names;
  for (const auto& model : models_) {
    if (model->source.names.empty()) return invalid_argument("The server needs a name for its model.");
    for (const std::string& name : model->source.names) {
      if (name.empty()) return invalid_argument("A model's name is empty.");
      if (!names.insert(name).second) return invalid_argument("Two models are called \"{}\".", name);
    }
    for (const std::string& name : model->source.adapters) {
      if (!names.insert(name).second)
        return invalid_argument("An adapter is called \"{}\" as another is, or a model.", name);
    }
    const int64_t most = config_.models_memory_bytes;
    if (most > 0 && model->source.bytes > most) {
      return invalid_argument(
          "model \"{}\" takes {} with its KV cache, more than all models together may (--models-memory {}).",
          model->name(), format_bytes(model->source.bytes), format_bytes(most));
    }
  }
  return {};
}

Models::~Models() {
  close();
  if (thread_.joinable()) thread_.join();
  std::unique_lock lock(mutex_);
  changed_.wait(lock,
                [&] { return std::ranges::all_of(models_, [](const auto& model) { return model->leases == 0; }); });
}

void Models::close() {
  std::vector<Use> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& model : models_) {
      std::ranges::move(model->waiting, std::back_inserter(dropped));
      model->waiting.clear();
    }
    num_waiting_ = 0;
  }
  changed_.notify_all();
  for (const Use& use : dropped) use(shutting_down());
}

// ---------------------------------------------------------------------------------------------------------------
// requests

Models::Model* Models::find(std::string_view name) const {
  if (name.empty()) return models_.front().get();
  for (const auto& model : models_) {
    if (std::ranges::find(model->source.names, name) != model->source.names.end()) return model.get();
  }
  if (models_.size() == 1) return has_adapter(*models_.front(), name) ? models_.front().get() : nullptr;
  // Whichever of them are loaded, a name is of the same model: of the one that it was given for, else of the first in
  // whose folder it is.
  for (const auto& model : models_) {
    if (lists_adapter(*model, name)) return model.get();
  }
  for (const auto& model : models_) {
    if (has_adapter(*model, name)) return model.get();
  }
  return nullptr;
}

bool Models::lists_adapter(const Model& model, std::string_view name) {
  const std::vector<AdapterInfo> adapters = adapters_of(model);
  return std::ranges::find(adapters, name, &AdapterInfo::name) != adapters.end();
}

bool Models::has_adapter(const Model& model, std::string_view name) {
  if (model.engine != nullptr) return model.engine->knows_adapter(std::string(name));
  return lists_adapter(model, name) || !path_in_folder(model.source, name).empty();
}

std::string Models::path_in_folder(const ModelSource& source, std::string_view name) {
  return source.adapter_path ? source.adapter_path(name) : std::string();
}

bool Models::forget_adapter(std::string_view name) {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& model : models_) {
    if (model->engine != nullptr) continue;
    // The names that it was to have from the start are then the others.
    if (!model->adapters && lists_adapter(*model, name)) {
      std::erase(model->source.adapters, name);
      ++count;
    } else if (model->adapters) {
      count += std::erase_if(*model->adapters, [&](const AdapterInfo& adapter) { return adapter.name == name; });
    }
  }
  return count > 0;
}

std::shared_ptr<const Models::Lease> Models::lend(Model& model) {
  ++model.leases;
  model.used = Clock::now();
  return std::make_shared<Held>(*this, model);
}

void Models::give_back(Model& model) {
  const std::lock_guard lock(mutex_);
  model.used = Clock::now();
  if (--model.leases == 0) changed_.notify_all();  // under the lock: the destructor waits for it
}

void Models::await(Model& model) {
  model.state = State::kAwaited;
  awaited_.push_back(&model);
  changed_.notify_all();
}

void Models::use(std::string_view name, const Use& use) {
  LeaseOr lease = shutting_down();
  {
    const std::lock_guard lock(mutex_);
    Model* model = find(name);
    if (model == nullptr) {
      lease = unknown_model(name);
    } else if (model->state == State::kLoaded) {
      lease = lend(*model);
    } else if (!stopping_ && num_waiting_ >= config_.max_queued_work) {
      lease = resource_exhausted("{} requests wait for models to be loaded; try again later.", num_waiting_);
    } else if (!stopping_) {
      model->waiting.push_back(use);
      ++num_waiting_;
      if (model->state == State::kUnloaded) await(*model);
      return;
    }
  }
  use(std::move(lease));
}

std::shared_ptr<const Models::Lease> Models::ready(std::string_view name) {
  const std::lock_guard lock(mutex_);
  Model* model = find(name);
  return model != nullptr && model->state == State::kLoaded ? lend(*model) : nullptr;
}

Models::LeaseOr Models::loaded(std::string_view name) {
  const std::lock_guard lock(mutex_);
  Model* model = find(name);
  if (model == nullptr) return unknown_model(name);
  if (model->generator == nullptr) {
    return unavailable("Model `{}` is not loaded.", model->name()).with_param("model");
  }
  return lend(*model);
}

std::vector<std::shared_ptr<const Models::Lease>> Models::all_loaded() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const Lease>> leases;
  for (const auto& model : models_) {
    if (model->generator != nullptr) leases.push_back(lend(*model));
  }
  return leases;
}

Status Models::unload(std::string_view name) {
  const std::lock_guard lock(mutex_);
  Model* model = find(name);
  if (model == nullptr) return unknown_model(name);
  if (model->state == State::kLoaded) model->state = State::kLeaving;
  changed_.notify_all();
  return {};
}

// ---------------------------------------------------------------------------------------------------------------
// the thread that loads

void Models::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (Model* model = to_unload()) {
      unload(*model, lock);
    } else if (!awaited_.empty() && make_room(*awaited_.front())) {
      Model& next = *awaited_.front();
      awaited_.pop_front();
      static_cast<void>(load(next, lock));
    } else if (to_unload() == nullptr) {  // make_room() may just have found one
      const Clock::time_point idle_end = next_idle_end();
      idle_end == Clock::time_point::max() ? changed_.wait(lock)
                                           : static_cast<void>(changed_.wait_until(lock, idle_end));
    }
  }
}

bool Models::fits(const Model& model, int64_t bytes, size_t count) const {
  const int64_t memory = config_.models_memory_bytes;
  const size_t most = config_.max_loaded_models;
  return (memory == 0 || bytes + model.source.bytes <= memory) && (most == 0 || count + 1 <= most);
}

// Whether the model can be loaded now. If not, others leave: those that nobody uses first, then those that were wanted
// longest ago; what they answer is finished, and requests that come for them wait until they are loaded again.
bool Models::make_room(const Model& model) {
  int64_t bytes = 0;
  size_t count = 0;
  int64_t staying_bytes = 0;
  size_t staying = 0;
  for (const auto& other : models_) {
    if (!other->takes_memory()) continue;
    bytes += other->source.bytes;
    ++count;
    if (other->state == State::kLeaving) continue;
    staying_bytes += other->source.bytes;
    ++staying;
  }
  if (fits(model, bytes, count)) return true;
  while (!fits(model, staying_bytes, staying)) {
    Model* next = next_to_go();
    if (next == nullptr) break;
    next->state = State::kLeaving;
    staying_bytes -= next->source.bytes;
    --staying;
  }
  return false;
}

Models::Model* Models::next_to_go() const {
  Model* found = nullptr;
  const auto before = [](const Model& a, const Model& b) {
    return std::pair(a.leases > 0, a.used) < std::pair(b.leases > 0, b.used);
  };
  for (const auto& model : models_) {
    if (model->state == State::kLoaded && (found == nullptr || before(*model, *found))) found = model.get();
  }
  return found;
}

// One that nobody uses and that is to leave, or has been idle for long enough.
Models::Model* Models::to_unload() const {
  const Clock::time_point now = Clock::now();
  for (const auto& model : models_) {
    if (model->leases > 0) continue;
    if (model->state == State::kLeaving) return model.get();
    const bool idle = config_.model_idle_timeout.count() > 0 && now - model->used >= config_.model_idle_timeout;
    if (model->state == State::kLoaded && idle) return model.get();
  }
  return nullptr;
}

Models::Clock::time_point Models::next_idle_end() const {
  auto end = Clock::time_point::max();
  if (config_.model_idle_timeout.count() == 0) return end;
  for (const auto& model : models_) {
    if (model->state == State::kLoaded && model->leases == 0)
      end = std::min(end, model->used + config_.model_idle_timeout);
  }
  return end;
}

namespace {

// Gives the engine the adapters that the one before it had, and no others.
void restore_adapters(const ModelSource& source, const std::vector<AdapterInfo>& adapters, engine::Engine& engine) {
  const std::vector<AdapterInfo> own = engine.adapters();
  for (const AdapterInfo& one : own) {
    if (std::ranges::find(adapters, one.name, &AdapterInfo::name) == adapters.end())
      static_cast<void>(engine.unload_adapter(one.name));
  }
  for (const AdapterInfo& adapter : adapters) {
    const auto same = std::ranges::find(own, adapter.name, &AdapterInfo::name);
    const bool is_there = same != own.end() && same->path == adapter.path;
    // What the folder has is found there when it is asked for.
    if (is_there || (source.adapter_path && source.adapter_path(adapter.name) == adapter.path)) continue;
    const Status status = engine.load_adapter(adapter.name, adapter.path, /*replace=*/same != own.end());
    if (!status.ok()) log_warning("adapter {} is not there any more: {}", adapter.name, status.message());
  }
}

}  // namespace

Status Models::load(Model& model, std::unique_lock<std::mutex>& lock) {
  model.state = State::kLoading;
  const std::optional<std::vector<AdapterInfo>> adapters = model.adapters;
  lock.unlock();
  std::unique_ptr<const Generator> generator;
  auto engine = model.source.load();
  Status status = engine.status();
  if (status.ok()) {
    auto made = Generator::create(config_, model.source, tenants_, **engine);
    status = made.status();
    if (status.ok()) {
      generator = std::move(*made);
      if (adapters) restore_adapters(model.source, *adapters, **engine);
      publish_cache_config(**engine);
    }
  }
  lock.lock();
  model.state = status.ok() ? State::kLoaded : State::kUnloaded;
  model.used = Clock::now();
  if (status.ok()) {
    model.adapters.reset();
    model.engine = std::move(*engine);
    model.generator = std::move(generator);
    model.source.max_model_len = model.engine->max_model_len();
    if (model.engine->model().task == ModelTask::kGenerate) {
      model.source.chat_sampling = model.generator->chat_sampling();
    }
  }
  const std::vector<Use> waiting = std::exchange(model.waiting, {});
  std::vector<LeaseOr> leases;
  for (size_t i = 0; i < waiting.size(); ++i) {
    leases.push_back(status.ok()
                         ? LeaseOr(lend(model))
                         : LeaseOr(unavailable("Model `{}` cannot be loaded; the server's log says why.", model.name())
                                       .with_param("model")));
  }
  num_waiting_ -= std::min(num_waiting_, waiting.size());
  lock.unlock();
  // Of the one that is loaded at start, for which nobody waits yet, it is the caller that tells why it cannot be.
  if (!status.ok() && !waiting.empty()) log_error("model {} cannot be loaded: {}", model.name(), status.message());
  for (size_t i = 0; i < waiting.size(); ++i) waiting[i](std::move(leases[i]));
  leases.clear();
  lock.lock();
  return status;
}

void Models::unload(Model& model, std::unique_lock<std::mutex>& lock) {
  model.state = State::kLeaving;
  std::unique_ptr<const Generator> generator = std::move(model.generator);
  std::shared_ptr<engine::Engine> engine = std::move(model.engine);
  model.adapters = engine->adapters();
  lock.unlock();
  generator.reset();
  engine.reset();
  trim_heap();  // what the next model needs should not be held by the heap
  log_info("model {} is unloaded", model.name());
  lock.lock();
  model.state = State::kUnloaded;
  if (!model.waiting.empty()) await(model);
}

// ---------------------------------------------------------------------------------------------------------------
// what is known of all

std::vector<AdapterInfo> Models::adapters_of(const Model& model) {
  if (model.engine != nullptr) return model.engine->adapters();
  std::vector<AdapterInfo> out;
  if (model.adapters) {
    out = *model.adapters;
  } else {
    for (const std::string& name : model.source.adapters) out.push_back({.name = name});
  }
  for (AdapterInfo& adapter : out) adapter.loaded = false;
  return out;
}

std::vector<Models::Listed> Models::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<Listed> out;
  for (const auto& model : models_) {
    const char* status = model->state == State::kLoaded     ? "loaded"
                         : model->state == State::kUnloaded ? "unloaded"
                         : model->state == State::kLeaving  ? "unloading"
                                                            : "loading";
    for (const std::string& name : model->source.names) {
      out.push_back({.name = name,
                     .root = model->source.root.empty() ? name : model->source.root,
                     .max_model_len = model->source.max_model_len,
                     .chat_sampling = model->source.chat_sampling,
                     .status = status});
    }
  }
  for (const auto& model : models_) {
    for (const AdapterInfo& adapter : adapters_of(*model)) {
      out.push_back(
          {.name = adapter.name,
           .root = adapter.path.empty() ? adapter.name : std::filesystem::path(adapter.path).filename().string(),
           .parent = model->name(),
           .max_model_len = model->source.max_model_len,
           .chat_sampling = model->source.chat_sampling,
           .status = adapter.loaded ? "loaded" : "unloaded"});
    }
  }
  return out;
}

Status Models::reset_prefix_caches() {
  for (const auto& lease : all_loaded()) lease->generator().engine().reset_prefix_cache();
  const std::lock_guard lock(mutex_);
  for (const auto& model : models_) {
    if (model->engine == nullptr && model->source.keeps_blocks) {
      return unavailable(
          "Model `{}` is not loaded, and what it has on disk is forgotten by itself alone: wake it first.",
          model->name());
    }
  }
  return {};
}

bool Models::healthy() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(models_,
                             [](const auto& model) { return model->engine == nullptr || model->engine->healthy(); });
}

std::string Models::trouble() const {
  const std::lock_guard lock(mutex_);
  for (const auto& model : models_) {
    if (model->engine == nullptr) continue;
    if (std::string trouble = model->engine->trouble(); !trouble.empty()) return trouble;
  }
  return "";
}

std::chrono::nanoseconds Models::busy_without_progress() const {
  const std::lock_guard lock(mutex_);
  std::chrono::nanoseconds longest{0};
  for (const auto& model : models_) {
    if (model->engine != nullptr) longest = std::max(longest, model->engine->busy_without_progress());
  }
  return longest;
}

int64_t Models::num_waiting() const {
  const std::lock_guard lock(mutex_);
  auto waiting = static_cast<int64_t>(num_waiting_);
  for (const auto& model : models_) {
    if (model->engine != nullptr) waiting += model->engine->stats().num_waiting;
  }
  return waiting;
}

int Models::retry_after() const {
  const std::lock_guard lock(mutex_);
  int longest = 1;
  for (const auto& model : models_) {
    if (model->generator != nullptr) longest = std::max(longest, model->generator->retry_after());
  }
  return longest;
}

Status unknown_model(std::string_view name) {
  return not_found("The model `{}` does not exist.", shortened(name, 200)).with_param("model");
}

ModelSource resident_model(const ServerConfig& config, engine::Engine& engine) {
  return {.names = config.served_model_names, .root = config.root_model, .load = [&engine] {
            return Result<std::shared_ptr<engine::Engine>>(
                std::shared_ptr<engine::Engine>(std::shared_ptr<void>(), &engine));
          }};
}

}  // namespace quire::server
