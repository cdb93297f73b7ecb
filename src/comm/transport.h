// Messages of bytes between ranks that share no memory, as MPI has them: from one rank to another, each with a tag;
// those of one tag between two ranks arrive in the order in which they were sent.
//
// Nothing waits: what was begun is asked after until it is done. Calls come from one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"

namespace quire::comm {

class Transport {
 public:
  using Request = void*;
  static constexpr int64_t kMostBytes = 1 << 30;  // of a message

  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Begins; the bytes are the transport's until test() says that it is done. Errors: unavailable, in the transport's
  // own words, and nothing was begun.
  virtual Result<Request> send(const void* data, int64_t bytes, int to, int tag) = 0;
  virtual Result<Request> receive(void* data, int64_t bytes, int from, int tag) = 0;
  // How many bytes came, or 0 of what was sent, when it is done; the request is then no more. Errors: unavailable, also
  // for a message that is longer than what was to be received; the request is then no more.
  virtual Result<std::optional<int64_t>> test(Request& request) = 0;
  // The length of the next message, if one has come.
  virtual Result<std::optional<int64_t>> probe(int from, int tag) = 0;
  // Of a request that nobody will ask after.
  virtual void give_up(Request request) = 0;
  // Another rank may be gone: the destructor waits for nobody, and whoever started the ranks ends what is left.
  virtual void leave_others_behind() = 0;
};

// Of a process that mpirun or srun has started. Once in a process; its destructor waits until the others have come to
// theirs. library: the path of libquire_mpi.so, or its name, which is then looked for where the program's libraries
// lie. Errors: not_found where there is no such library or no MPI, saying what to install; unavailable where MPI does
// not start.
Result<std::unique_ptr<Transport>> open_mpi(const std::string& library);

}  // namespace quire::comm
