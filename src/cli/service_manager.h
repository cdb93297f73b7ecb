// What systemd is told of a service of Type=notify: one datagram a state to the socket that it names in NOTIFY_SOCKET
// (sd_notify(3)). Without that variable nothing is told.
#pragma once

#include <string>

#include "base/status.h"

namespace quire::cli {

class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET.
  ServiceManager();

  void ready();     // listening
  void stopping();  // draining

 private:
  void tell(const char* state) const;

  std::string socket_;  // a path; '@' first for Linux's abstract names; empty: nobody asks
};

}  // namespace quire::cli
