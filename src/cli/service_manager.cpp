#include "cli/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/log.h"

namespace quire::cli {

ServiceManager::ServiceManager() {
  if (const char* name = std::getenv("NOTIFY_SOCKET"); name != nullptr) socket_ = name;
}

void ServiceManager::ready() {
  tell("READY=1\n");
}

void ServiceManager::stopping() {
  tell("STOPPING=1\n");
}

void ServiceManager::tell(const char* state) const {
  if (socket_.empty()) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if ((socket_[0] != '/' && socket_[0] != '@') || socket_.size() >= sizeof address.sun_path) {
    log_warning("NOTIFY_SOCKET is no Unix socket's name: {}", socket_);
    return;
  }
  socket_.copy(address.sun_path, socket_.size());
  if (socket_[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  const int sender = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool told = sender >= 0 && ::sendto(sender, state, std::strlen(state), MSG_NOSIGNAL,
                                            reinterpret_cast<const sockaddr*>(&address), size) >= 0;
  if (!told) log_warning("the service manager could not be told: {}", std::strerror(errno));
  if (sender >= 0) ::close(sender);
}

}  // namespace quire::cli
