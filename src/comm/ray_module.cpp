// libquire_ray.so: see ray_calls.h. The only source that knows Ray. It is compiled with the old ABI of the C++ library,
// as Ray is, and needs no symbol of Ray's library at link time: the program finds that one where pip has put it, and
// keeps its symbols (protobuf's, gRPC's, BoringSSL's) from everybody else.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include <ray/api.h>

#include "comm/child_process.h"
#include "comm/ray_calls.h"

namespace {

using quire::comm::ChildEnd;
using quire::comm::ChildProcess;

// In a worker of Ray's: a process that it starts and watches. One call waits as long as the process lives.
class RankActor {
 public:
  static RankActor* create() { return new RankActor(); }

  std::string start(std::vector<std::string> command, std::vector<std::string> environment, std::string folder) {
    child_ = std::make_unique<ChildProcess>(command, environment, folder);
    char name[256] = {};
    gethostname(name, sizeof(name) - 1);
    return std::string(name) + " (" + own_address() + ")";
  }

  std::tuple<int, int, std::string> wait() {
    if (child_ == nullptr) throw std::runtime_error("it was not started");
    const ChildEnd& end = child_->wait();
    return {end.code, end.signal, end.tail};
  }

 private:
  // As Ray calls this node: what it tells its workers.
  static std::string own_address() {
    std::ifstream file("/proc/self/cmdline");
    const std::string flag = "--ray_node_ip_address=";
    for (std::string argument; std::getline(file, argument, '\0');) {
      if (argument.compare(0, flag.size(), flag) == 0) return argument.substr(flag.size());
    }
    return "address unknown";
  }

  std::unique_ptr<ChildProcess> child_;
};

RAY_REMOTE(RankActor::create, &RankActor::start, &RankActor::wait);

// What a worker asks of a library of code, by names of its own.
msgpack::sbuffer execute(const std::string& name, const ray::internal::ArgsBufferList& arguments,
                         msgpack::sbuffer* actor) {
  auto& functions = ray::internal::FunctionManager::Instance();
  if (actor != nullptr) {
    auto* method = functions.GetMemberFunction(name);
    if (method == nullptr) throw std::invalid_argument("libquire_ray.so has no method " + name);
    return (*method)(actor, arguments);
  }
  auto* function = functions.GetFunction(name);
  if (function == nullptr) throw std::invalid_argument("libquire_ray.so has no function " + name);
  return (*function)(arguments);
}
std::pair<const ray::internal::RemoteFunctionMap_t&, const ray::internal::RemoteMemberFunctionMap_t&> functions() {
  return ray::internal::FunctionManager::Instance().GetRemoteFunctions();
}
void set_runtime(std::shared_ptr<ray::internal::RayRuntime> runtime) {
  ray::internal::RayRuntimeHolder::Instance().Init(std::move(runtime));
}

// In the program.

void say(QuireRayText to, const std::string& words) {
  if (to.size <= 0) return;
  const size_t count = std::min(words.size(), static_cast<size_t>(to.size) - 1);
  std::memcpy(to.data, words.data(), count);
  to.data[count] = '\0';
}

// Of libray_api.so, by the names that its compiler gave them: what Ray's headers declare and do not define, and what
// tells a driver about a cluster before it has joined it.
struct Accessor;  // ray::gcs::GlobalStateAccessor
struct NotDeleted {
  void operator()(Accessor*) const {}
};
using AccessorPointer = std::unique_ptr<Accessor, NotDeleted>;  // is returned as Ray's own is

struct RayFunctions {
  void (*init)(ray::RayConfig&);
  void (*shutdown)();
  std::shared_ptr<ray::internal::RayRuntime> (*runtime)();  // AbstractRayRuntime::GetInstance(): its only base
  AccessorPointer (*make_accessor)(void* process_helper, const std::string& host, int port);
  void (*destroy_accessor)(Accessor* accessor);
  std::unique_ptr<std::string> (*read_value)(Accessor* accessor, const std::string& space, const std::string& key);
  std::vector<std::string> (*read_nodes)(Accessor* accessor);
};

struct Rank {
  ray::ActorHandle<RankActor> actor;
  // Copied from what a call gives: moving one lets go of the object first.
  std::optional<ray::ObjectRef<std::string>> started;
  std::optional<ray::ObjectRef<std::tuple<int, int, std::string>>> ended;
};

struct Driver {
  RayFunctions ray;
  std::optional<ray::PlacementGroup> group;
  std::vector<std::unique_ptr<Rank>> ranks;  // by bundle
  int cpus = 0;
};
Driver* driver = nullptr;  // one in a process, as Ray has it

// Of an actor that has died Ray's reason is a message of protobuf's, whose strings alone can be read.
std::string printable(const std::string& reason) {
  std::string words;
  for (const char letter : reason) {
    const bool is_word = letter >= ' ' && letter <= '~';
    if (is_word || (!words.empty() && words.back() != ' ')) words += is_word ? letter : ' ';
  }
  return words;
}

template <typename Body>
int in_words(QuireRayText why, Body&& body) {
  try {
    return body();
  } catch (const ray::internal::RayTimeoutException& error) {
    say(why, error.what());
    return kQuireRayTimedOut;
  } catch (const ray::internal::RayActorException& error) {
    const std::string reason = printable(error.msg_);  // all of it: what() ends at a 0
    const size_t begin = reason.find("The actor ");    // behind what is not text
    say(why, begin == std::string::npos ? "Ray's actor for it has died: " + reason : reason.substr(begin));
  } catch (const std::exception& error) {
    say(why, printable(error.what()));
  } catch (...) {
    say(why, "Ray gives no reason");
  }
  return kQuireRayFailed;
}

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

int load(const char* ray_api, QuireRayText why) {
  int flags = RTLD_NOW | RTLD_LOCAL;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  flags |= RTLD_DEEPBIND;  // sanitizers refuse it
#endif
  void* const library = dlopen(ray_api, flags);  // stays: its threads have no end
  if (library == nullptr) {
    const char* reason = dlerror();
    say(why, reason == nullptr ? ray_api : reason);
    return kQuireRayFailed;
  }
  RayFunctions ray{};
  if (!find(library, "_ZN3ray4InitERNS_9RayConfigE", ray.init) || !find(library, "_ZN3ray8ShutdownEv", ray.shutdown) ||
      !find(library, "_ZN3ray8internal18AbstractRayRuntime11GetInstanceEv", ray.runtime) ||
      !find(library, "_ZN3ray8internal13ProcessHelper25CreateGlobalStateAccessorERKSsi", ray.make_accessor) ||
      !find(library, "_ZN3ray3gcs19GlobalStateAccessorD1Ev", ray.destroy_accessor) ||
      !find(library, "_ZN3ray3gcs19GlobalStateAccessor13GetInternalKVERKSsS3_", ray.read_value) ||
      !find(library, "_ZN3ray3gcs19GlobalStateAccessor14GetAllNodeInfoEv", ray.read_nodes)) {
    say(why, std::string(ray_api) + " lacks a function of Ray " QUIRE_RAY_VERSION);
    return kQuireRayFailed;
  }
  int* least = nullptr;  // ray::RayLog::severity_threshold_: what it writes to stderr before it has files to write to
  if (find(library, "_ZN3ray6RayLog19severity_threshold_E", least)) *least = 1;  // warnings
  driver = new Driver{.ray = ray, .group = std::nullopt, .ranks = {}, .cpus = 0};
  return kQuireRayDone;
}

int look(const char* address, void* to, void (*metadata)(void* to, const char* json, uint64_t bytes),
         void (*node)(void* to, const char* record, uint64_t bytes), QuireRayText why) {
  return in_words(why, [&]() -> int {
    const std::string whole = address;
    const size_t colon = whole.rfind(':');
    // It uses nothing of the object that it is a method of.
    const AccessorPointer accessor =
        driver->ray.make_accessor(nullptr, whole.substr(0, colon), std::stoi(whole.substr(colon + 1)));
    const auto about = driver->ray.read_value(accessor.get(), "cluster", "CLUSTER_METADATA");
    const std::vector<std::string> records = driver->ray.read_nodes(accessor.get());
    driver->ray.destroy_accessor(accessor.get());
    operator delete(accessor.get());
    if (about != nullptr) metadata(to, about->data(), about->size());
    for (const std::string& record : records) node(to, record.data(), record.size());
    return kQuireRayDone;
  });
}

int join(const char* address, const char* library, QuireRayText why) {
  return in_words(why, [&]() -> int {
    ray::RayConfig config;
    config.address = address;
    config.code_search_path = {library};
    driver->ray.init(config);
    set_runtime(driver->ray.runtime());
    return kQuireRayDone;
  });
}

int place(int bundles, int cpus, int spreads, int timeout_s, QuireRayText why) {
  return in_words(why, [&]() -> int {
    ray::PlacementGroupCreationOptions options;
    options.name = "quire";
    for (int i = 0; i < bundles; ++i) options.bundles.push_back({{"CPU", static_cast<double>(cpus)}});
    options.strategy = spreads != 0 ? ray::PlacementStrategy::SPREAD : ray::PlacementStrategy::PACK;
    driver->group = ray::CreatePlacementGroup(options);
    driver->cpus = cpus;
    driver->ranks.resize(static_cast<size_t>(bundles));
    return driver->group->Wait(timeout_s) ? kQuireRayDone : kQuireRayTimedOut;
  });
}

int start(int bundle, const char* const* command, const char* const* environment, const char* folder,
          QuireRayText why) {
  return in_words(why, [&]() -> int {
    const auto list = [](const char* const* from) {
      std::vector<std::string> strings;
      for (; *from != nullptr; ++from) strings.emplace_back(*from);
      return strings;
    };
    auto rank = std::make_unique<Rank>();
    rank->actor = ray::Actor(RankActor::create)
                      .SetName("quire rank " + std::to_string(bundle + 1))
                      .SetResource("CPU", driver->cpus)
                      .SetPlacementGroup(*driver->group, bundle)
                      .Remote();
    // Not as the actor is made: what that is told Ray's head keeps, and shows.
    const auto started =
        rank->actor.Task(&RankActor::start).Remote(list(command), list(environment), std::string(folder));
    const auto ended = rank->actor.Task(&RankActor::wait).Remote();
    rank->started.emplace(started);
    rank->ended.emplace(ended);
    driver->ranks[static_cast<size_t>(bundle)] = std::move(rank);
    return kQuireRayDone;
  });
}

int started(int bundle, int timeout_ms, QuireRayText node) {
  return in_words(node, [&]() -> int {
    say(node, *driver->ranks[static_cast<size_t>(bundle)]->started->Get(timeout_ms));
    return kQuireRayDone;
  });
}

int ended(int bundle, int* code, int* signal, QuireRayText tail) {
  return in_words(tail, [&]() -> int {
    const auto& end = *driver->ranks[static_cast<size_t>(bundle)]->ended;
    if (!ray::internal::GetRayRuntime()->Wait({end.ID()}, 1, 0).front()) return kQuireRayStillThere;
    const auto result = end.Get(1000);
    *code = std::get<0>(*result);
    *signal = std::get<1>(*result);
    say(tail, std::get<2>(*result));
    return kQuireRayDone;
  });
}

void leave() {
  char words[256];
  const QuireRayText unheard{.data = words, .size = sizeof(words)};
  for (auto& rank : driver->ranks) {
    if (rank != nullptr) in_words(unheard, [&]() -> int { return rank->actor.Kill(), kQuireRayDone; });
  }
  driver->ranks.clear();
  if (driver->group.has_value())
    in_words(unheard, [&]() -> int { return ray::RemovePlacementGroup(driver->group->GetID()), kQuireRayDone; });
  driver->group.reset();
  in_words(unheard, [&]() -> int { return set_runtime(nullptr), driver->ray.shutdown(), kQuireRayDone; });
}

constexpr QuireRayCalls kCalls = {
    .version = kQuireRayVersion,
    .ray_version = QUIRE_RAY_VERSION,
    .load = load,
    .look = look,
    .join = join,
    .place = place,
    .start = start,
    .started = started,
    .ended = ended,
    .leave = leave,
};

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const QuireRayCalls* quire_ray_calls() {
  return &kCalls;
}

// Addresses of functions, as boost::dll::import_alias() reads them.
extern __attribute__((visibility("default"))) const void* const TaskExecutionHandler;
const void* const TaskExecutionHandler = reinterpret_cast<const void*>(execute);
extern __attribute__((visibility("default"))) const void* const GetRemoteFunctions;
const void* const GetRemoteFunctions = reinterpret_cast<const void*>(functions);
extern __attribute__((visibility("default"))) const void* const InitRayRuntime;
const void* const InitRayRuntime = reinterpret_cast<const void*>(set_runtime);

}  // extern "C"
