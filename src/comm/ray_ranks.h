// Processes on the nodes of a Ray cluster. Ray chooses the nodes, reserves their cores, starts one process on each
// place and watches it; what the processes say to each other is not its business. Rank 0 is the process that calls
// this.
//
// Each place is a bundle of a placement group, and an actor in it starts the process as its child, which dies with it:
// when the caller ends, be it by a signal that nobody can catch, Ray ends its actors.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/python_packages.h"
#include "base/status.h"

namespace quire::comm {

// The one version of Ray whose C++ interface libquire_ray.so was made for (dependencies.txt); a cluster of another one
// is refused.
const char* ray_version();

// Where the bundles should lie: on as few nodes as will do, or on as many as there are.
enum class RayStrategy { kPack, kSpread };

struct RayRanksOptions {
  // libquire_ray.so: its path, or its name, which is then looked for where the program's libraries lie. Every node must
  // have it at the path where it lies here.
  std::string library = "libquire_ray.so";
  std::string ray_api;  // libray_api.so: find_ray_api()
  std::string address;  // of the cluster, "host:port": ray_address()
  RayStrategy strategy = RayStrategy::kPack;
  int cpus_per_rank = 1;
  std::chrono::seconds placement_timeout{60};  // for cores that others have
  std::chrono::seconds start_timeout{60};      // for the actors, and what they start
  std::chrono::seconds end_timeout{10};        // in which the processes may end by themselves before they are killed
  std::string program;                         // its path on every node
  std::vector<std::string> arguments;          // without the program's name; everybody on a node can read them
  std::string folder;  // where they start, if the node has it; empty: where Ray starts its workers
  // Of rank 1, 2, ...: "NAME=value", beside what Ray's workers have. As many as there are processes to start.
  std::vector<std::vector<std::string>> environments;
};

class RayRanks {
 public:
  // Waits until all have been started. Once in a process, and it starts threads, which take none of the process's
  // signals; handlers of signals stay what they were. Errors: not_found without Ray's library or a cluster at the
  // address, saying what to install or to start; invalid_argument where the cluster has another version or fewer cores
  // than are asked for; deadline_exceeded where they did not come free, or a node did not start its process, in time;
  // unavailable in Ray's words.
  static Result<std::unique_ptr<RayRanks>> start(const RayRanksOptions& options);

  virtual ~RayRanks() = default;  // waits for the processes to end, kills those that do not, and leaves the cluster

  // ok while all are there. unavailable: the first that ended or was lost with its node, in a sentence with its rank,
  // its node, its exit code or signal, and the last lines that it wrote to stderr. Waits for nothing; from any thread.
  virtual Status status() const = 0;

  // "name (address)" of a rank's node, from rank 1 on.
  virtual const std::string& node(int rank) const = 0;

 protected:
  RayRanks() = default;
};

// Variables of the process's environment that say where Ray lies; empty where one is not set.
struct RayEnvironment {
  std::string ray_cpp;  // QUIRE_RAY_CPP: libray_api.so, or its folder
  PythonEnvironment python;
};

// libray_api.so of the package ray-cpp: what is named, else of the first Python that has it, in the order of
// python_packages(). root: the system's, for tests. Errors: not_found, saying what to install; invalid_argument for a
// version that is not ray_version().
Result<std::string> find_ray_api(const RayEnvironment& environment, const std::string& root = "/");

// The address of a cluster as Ray itself finds it: asked (RAY_ADDRESS) where it is "host:port"; where it is empty or
// "auto", that of the cluster that was started on this machine last. temporary: the folder of Ray's temporary files
// (RAY_TMPDIR), empty for /tmp. Errors: not_found where none was started; invalid_argument for what is no address of a
// cluster (ray://, http://).
Result<std::string> ray_address(const std::string& asked, const std::string& temporary = "");

}  // namespace quire::comm
