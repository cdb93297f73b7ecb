// What libquire_ray.so (ray_module.cpp) gives the program: Ray's C++ interface behind plain types. It is loaded when a
// model is computed over a Ray cluster, so that the program starts and does everything else where Ray is not installed.
// Ray's own workers load the same library, for the actors.
//
// Calls give kQuireRayDone, or another outcome and words that say why. They come from one thread at a time.
#pragma once

#include <cstdint>

extern "C" {

inline constexpr uint32_t kQuireRayVersion = 1;

// Filled with words and a 0, cut where it is too small.
struct QuireRayText {
  char* data;
  int size;
};

enum QuireRayOutcome { kQuireRayDone = 0, kQuireRayFailed = 1, kQuireRayTimedOut = 2, kQuireRayStillThere = 3 };

struct QuireRayCalls {
  uint32_t version;
  const char* ray_version;  // of the headers it was compiled with
  // Loads libray_api.so. Once in a process.
  int (*load)(const char* ray_api, QuireRayText why);
  // Asks a cluster of what version it is (JSON) and which nodes it has (each as Ray's message GcsNodeInfo), and joins
  // nothing. Ends the process, in Ray's words, where something answers that is not a cluster.
  int (*look)(const char* address, void* to, void (*metadata)(void* to, const char* json, uint64_t bytes),
              void (*node)(void* to, const char* record, uint64_t bytes), QuireRayText why);
  // Becomes a driver. library: this one's path, from which workers load it. Starts threads.
  int (*join)(const char* address, const char* library, QuireRayText why);
  // Reserves so many bundles of so many cores.
  int (*place)(int bundles, int cpus, int spreads, int timeout_s, QuireRayText why);
  // Begins to start a process in a bundle. Both lists end with a nullptr. See ChildProcess.
  int (*start)(int bundle, const char* const* command, const char* const* environment, const char* folder,
               QuireRayText why);
  // Whether it has been started; then node has the "name (address)" of where it is, else why not.
  int (*started)(int bundle, int timeout_ms, QuireRayText node);
  // kQuireRayStillThere; kQuireRayDone where the process has ended, with what ChildEnd has; kQuireRayFailed where its
  // actor is no more.
  int (*ended)(int bundle, int* code, int* signal, QuireRayText tail);
  // Ends what is left and gives the cores back. Nothing can be joined after that.
  void (*leave)();
};

// The library's symbol for the program.
const QuireRayCalls* quire_ray_calls();

}  // extern "C"
