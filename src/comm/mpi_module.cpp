// libquire_mpi.so: see mpi_calls.h. The only source that knows MPI.
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "comm/mpi_calls.h"

namespace {

static_assert(sizeof(MPI_Request) <= sizeof(void*), "a request is handed out as a pointer");

MPI_Comm own_world = MPI_COMM_NULL;  // no other library's messages are among ours

void* to_pointer(MPI_Request request) {
  void* pointer = nullptr;
  std::memcpy(&pointer, &request, sizeof(request));
  return pointer;
}

MPI_Request from_pointer(void* pointer) {
  MPI_Request request{};
  std::memcpy(&request, &pointer, sizeof(request));
  return request;
}

int start(int* rank, int* size) {
  int provided = MPI_THREAD_SINGLE;
  int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (error != MPI_SUCCESS) return error;
  if (provided < MPI_THREAD_SERIALIZED) return MPI_ERR_OTHER;
  // By itself it would end the process without a word to whoever called.
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  error = MPI_Comm_dup(MPI_COMM_WORLD, &own_world);
  if (error != MPI_SUCCESS) return error;
  MPI_Comm_set_errhandler(own_world, MPI_ERRORS_RETURN);
  error = MPI_Comm_rank(own_world, rank);
  return error != MPI_SUCCESS ? error : MPI_Comm_size(own_world, size);
}

void stop() {
  if (own_world != MPI_COMM_NULL) MPI_Comm_free(&own_world);
  MPI_Finalize();
}

int send(const void* data, int bytes, int to, int tag, void** request) {
  MPI_Request begun = MPI_REQUEST_NULL;
  const int error = MPI_Isend(data, bytes, MPI_BYTE, to, tag, own_world, &begun);
  *request = to_pointer(begun);
  return error;
}

int receive(void* data, int bytes, int from, int tag, void** request) {
  MPI_Request begun = MPI_REQUEST_NULL;
  const int error = MPI_Irecv(data, bytes, MPI_BYTE, from, tag, own_world, &begun);
  *request = to_pointer(begun);
  return error;
}

int test(void** request, int* done, int* bytes) {
  MPI_Request under_way = from_pointer(*request);
  MPI_Status status{};
  int error = MPI_Test(&under_way, done, &status);
  *request = to_pointer(under_way);
  if (error == MPI_SUCCESS && *done != 0) error = MPI_Get_count(&status, MPI_BYTE, bytes);
  return error;
}

int probe(int from, int tag, int* found, int* bytes) {
  MPI_Status status{};
  const int error = MPI_Iprobe(from, tag, own_world, found, &status);
  return error != MPI_SUCCESS || *found == 0 ? error : MPI_Get_count(&status, MPI_BYTE, bytes);
}

void give_up(void** request) {
  MPI_Request under_way = from_pointer(*request);
  if (under_way == MPI_REQUEST_NULL) return;
  MPI_Cancel(&under_way);
  MPI_Request_free(&under_way);
}

void describe(int error, char* text, int size) {
  char words[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(error, words, &length) != MPI_SUCCESS) length = 0;
  const int count = std::min(length, size - 1);
  std::memcpy(text, words, static_cast<size_t>(count));
  text[count] = '\0';
}

constexpr QuireMpiCalls kCalls = {
    .version = kQuireMpiVersion,
    .start = start,
    .stop = stop,
    .send = send,
    .receive = receive,
    .test = test,
    .probe = probe,
    .give_up = give_up,
    .describe = describe,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const QuireMpiCalls* quire_mpi_calls() {
  return &kCalls;
}
