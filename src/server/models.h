// The models of one server. A model is loaded when a request first names it, and unloaded when nobody has used it for a
// while or another one needs its memory; requests wait for theirs meanwhile, in the order in which they came.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/metrics.h"
#include "base/status.h"
#include "engine/engine.h"
#include "server/generator.h"
#include "server/load.h"
#include "server/server.h"
#include "server/tenants.h"

namespace quire::server {

class Models {
 public:
  // A model that is loaded, for as long as somebody holds this.
  class Lease {
   public:
    virtual ~Lease() = default;
    virtual const Generator& generator() const = 0;
  };
  using LeaseOr = Result<std::shared_ptr<const Lease>>;
  using Use = std::function<void(LeaseOr)>;

  // Loads the first model. All but `sources` must outlive it. Errors: invalid_argument (no model, a name twice or
  // empty, a model larger than the memory of all), and those of loading.
  static Result<std::unique_ptr<Models>> start(const ServerConfig& config, Tenants& tenants, Metrics& metrics,
                                               std::vector<ModelSource> sources);
  ~Models();  // waits for the last lease
  Models(const Models&) = delete;
  Models& operator=(const Models&) = delete;

  // An adapter's name is its model's too. Calls `use` once: on this thread when the model is loaded, else when it is,
  // on the one that loads. An empty name is the first model's. Errors that `use` is given: not_found with param()
  // "model"; unavailable (it could not be loaded, the server stops); resource_exhausted (too many wait).
  void use(std::string_view name, const Use& use);
  // A place among those that wait for models, for as long as it is held; nullptr where this key has as many as it may
  // (server/load.h).
  std::unique_ptr<LoadTicket> wait(int32_t tenant) { return waiting_->enter(tenant, 1); }
  // The model if use() would give it at once; else nullptr.
  std::shared_ptr<const Lease> ready(std::string_view name);
  // The model if it is loaded now. Errors: not_found, unavailable.
  LeaseOr loaded(std::string_view name);
  // All that are loaded now.
  std::vector<std::shared_ptr<const Lease>> all_loaded();
  // Unloads the model as soon as what it answers is done. Errors: not_found.
  Status unload(std::string_view name);
  // Of models that are not loaded. False: none of them has an adapter of the name.
  bool forget_adapter(std::string_view name);
  // Of all that are loaded. Errors: unavailable (another one has blocks on disk).
  Status reset_prefix_caches();
  // Loads and unloads no more: whoever waits is told so. Models that are loaded can still be used. Idempotent.
  void close();

  struct Listed {
    std::string name;
    std::string root;
    std::string parent;  // of an adapter: its model; else empty
    int64_t max_model_len = 0;
    std::optional<SamplingDefaults> chat_sampling;  // nullopt: not known before it is loaded
    const char* status = "";                        // "unloaded", "loading", "loaded", "unloading"
  };
  // One a name, in the order of the sources; then their adapters.
  std::vector<Listed> list() const;

  // No engine has failed.
  bool healthy() const;
  // Of the first engine that has some (engine::Engine::trouble()); empty: none has.
  std::string trouble() const;
  // The longest of all engines'.
  std::chrono::nanoseconds busy_without_progress() const;
  int64_t num_waiting() const;  // requests, in the engines and for models
  int retry_after() const;      // seconds after which there may be room
  Metrics& metrics() const { return metrics_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kUnloaded, kAwaited, kLoading, kLoaded, kLeaving };
  struct Model;
  class Held;

  Models(const ServerConfig& config, Tenants& tenants, Metrics& metrics, std::vector<ModelSource> sources);
  Status check() const;
  void run();
  Model* find(std::string_view name) const;
  // Whether it has been given an adapter of the name, and whether requests may name it: the folder of adapters counts.
  static bool lists_adapter(const Model& model, std::string_view name);
  static bool has_adapter(const Model& model, std::string_view name);
  static std::string path_in_folder(const ModelSource& source, std::string_view name);  // empty: it has none
  static std::vector<AdapterInfo> adapters_of(const Model& model);
  std::shared_ptr<const Lease> lend(Model& model);
  void give_back(Model& model);
  void await(Model& model);
  bool fits(const Model& model, int64_t bytes, size_t count) const;
  bool make_room(const Model& model);
  Model* next_to_go() const;
  Model* to_unload() const;
  Clock::time_point next_idle_end() const;
  // Both let go of the lock meanwhile.
  Status load(Model& model, std::unique_lock<std::mutex>& lock);
  void unload(Model& model, std::unique_lock<std::mutex>& lock);

  const ServerConfig& config_;
  Tenants& tenants_;
  Metrics& metrics_;
  const std::vector<std::unique_ptr<Model>> models_;

  mutable std::mutex mutex_;  // of all that changes in the models too
  std::condition_variable changed_;
  std::deque<Model*> awaited_;           // to be loaded, the first asked for first
  size_t num_waiting_ = 0;               // requests
  const std::shared_ptr<Load> waiting_;  // the same by key
  bool stopping_ = false;
  std::thread thread_;
};

// not_found with param() "model".
Status unknown_model(std::string_view name);

// The model of an engine that is there already, and stays, under the configuration's names.
ModelSource resident_model(const ServerConfig& config, engine::Engine& engine);

}  // namespace quire::server
