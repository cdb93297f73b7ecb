// What libquire_mpi.so (mpi_module.cpp) gives the program: MPI's calls behind plain types. It is loaded when a model is
// computed over MPI, so that the program starts and does everything else where MPI is not installed.
//
// Calls give 0, or an error that describe() puts into words. They come from one thread at a time, but not from the same
// one (MPI_THREAD_SERIALIZED), and none of them waits.
#pragma once

#include <cstdint>

extern "C" {

inline constexpr uint32_t kQuireMpiVersion = 1;

struct QuireMpiCalls {
  uint32_t version;
  // Once in a process.
  int (*start)(int* rank, int* size);
  // Waits for the others' end.
  void (*stop)();
  // Begins to send, or to receive, so many bytes. They are not touched until test() says that it is done.
  int (*send)(const void* data, int bytes, int to, int tag, void** request);
  int (*receive)(void* data, int bytes, int from, int tag, void** request);
  // done: 1 when it is, and then the request is no more. bytes: of a message that was received.
  int (*test)(void** request, int* done, int* bytes);
  // found: 1 where a message has begun to come; bytes: how long it is.
  int (*probe)(int from, int tag, int* found, int* bytes);
  void (*give_up)(void** request);
  void (*describe)(int error, char* text, int size);
};

// The one symbol of the library.
const QuireMpiCalls* quire_mpi_calls();

}  // extern "C"
