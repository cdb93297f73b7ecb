// The adapters that an engine knows, of which some are in memory. They are read on a thread of the store's own, so that
// no step waits for a file, nor, on a device with memory of its own, for the copy. Who uses one holds a lease; what
// nobody uses leaves when another needs its room, the one that was wanted longest ago first. Whoever finds no room
// waits for it in turn, and nobody who comes later goes before.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "runner/adapter.h"
#include "runner/adapter_table.h"
#include "types/adapter_info.h"

namespace quire::runner {

struct AdapterLimits {
  int32_t most_loaded = 0;
  int64_t most_bytes = 0;  // of all that are loaded
  std::string folder;      // where adapters that nobody has registered are looked for by name; empty: nowhere

  // Of a device that has memory of its own: for all of them, each of which begins at an address of its own alignment.
  int64_t device_bytes() const;
};

// An adapter in use, for as long as somebody holds this.
class AdapterLease {
 public:
  virtual ~AdapterLease() = default;
  virtual const Adapter& adapter() const = 0;
  // Of this adapter in this version: another version of the same name has another one. Over 0.
  virtual int32_t number() const = 0;
};

// Thread-safe.
class AdapterStore final : public AdapterTable {
 public:
  using LeaseOr = Result<std::shared_ptr<const AdapterLease>>;
  using Done = std::function<void(LeaseOr)>;

  // The backend must outlive the store and the last lease. A device with memory of its own has most_bytes of it taken
  // at once, if it has them.
  AdapterStore(AdapterHost host, AdapterLimits limits, ops::Backend& backend);
  // Of a model that other processes compute: has them read the file once more, and gives what stands for the adapter
  // here (adapter_ranks.h). Called on the store's thread, as is its Adapter::Elsewhere::take_place when there is room.
  using Load = std::function<Result<std::shared_ptr<Adapter>>(const checkpoint::AdapterFile& file,
                                                              const std::string& path, int32_t number)>;
  AdapterStore(Load load, AdapterLimits limits);
  bool has_memory() const;   // REQUIRES of all that follows: it is true
  ~AdapterStore() override;  // whoever waits is told that the engine stops
  AdapterStore(const AdapterStore&) = delete;
  AdapterStore& operator=(const AdapterStore&) = delete;

  // Reads the adapter and gives it this name, when all that came before has been served; `done` gets a lease of it.
  // replace: in the place of one that has the name already, whose users keep it as long as they need it. Errors:
  // invalid_argument with param() "lora_name" where the name is taken or empty; those of reading.
  void load(const std::string& name, const std::string& path, bool replace, const Done& done);
  // Forgets the name. Who uses the adapter keeps it; its memory is free, or the next adapter's, when the last one is
  // done. Errors: not_found with param() "lora_name".
  Status unload(std::string_view name);
  // `done` is called once: at once, on this thread, where the adapter is loaded and nobody waits; else on the store's.
  // Errors that it is given: not_found with param() "model"; unavailable; those of reading, for a file may have
  // changed.
  void acquire(std::string_view name, const Done& done);
  // Whether acquire() would find the name. Looks into the folder.
  bool knows(std::string_view name) const;
  const Adapter* in_use(int32_t number) const override;
  // The one of this number is lost where it was: who wants it from now on has it read again.
  void lose(int32_t number);

  std::vector<AdapterInfo> list() const;  // by name
  struct Statistics {
    int32_t num_loaded = 0;
    int32_t num_waiting = 0;  // who wait for one
    int64_t bytes = 0;        // of all that are loaded
    uint64_t loads = 0;       // since the start
    double load_seconds = 0;  // of all loads
  };
  Statistics statistics() const;
  const AdapterLimits& limits() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

// Where an adapter of this name lies in the folder. Errors: invalid_argument for a name that is no plain one ("..",
// "a/b", an absolute path) and for a link that leads out of the folder; not_found.
Result<std::string> path_in_folder(const std::string& folder, std::string_view name);

}  // namespace quire::runner
