#include "server/unix_socket.h"

#include <cerrno>
#include <cstring>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace quire::server {

Status remove_stale_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return invalid_argument("The path of a Unix socket has at most {} bytes; {} has {}.", sizeof address.sun_path - 1,
                            path, path.size());
  }
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return {};  // what else is wrong, bind() will say
  if (!S_ISSOCK(found.st_mode)) return unavailable("{} is there already, and is no socket.", path);
  path.copy(address.sun_path, path.size());
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return unavailable("Cannot open a Unix socket: {}.", std::strerror(errno));
  const bool listened_on = ::connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  const int error = errno;
  ::close(probe);
  if (listened_on || error != ECONNREFUSED) {
    return unavailable("Another process listens on {}: {}.", path, listened_on ? "it answers" : std::strerror(error));
  }
  if (::unlink(path.c_str()) != 0) {
    return unavailable("Cannot remove the socket {} that a process left: {}.", path, std::strerror(errno));
  }
  return {};
}

Status UnixSocketFile::adopt(const std::string& path, uint32_t mode) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0 || ::chmod(path.c_str(), mode) != 0) {
    return unavailable("Cannot set the permissions of the socket {}: {}.", path, std::strerror(errno));
  }
  path_ = path;
  device_ = found.st_dev;
  inode_ = found.st_ino;
  return {};
}

UnixSocketFile::~UnixSocketFile() {
  struct stat found {};
  if (path_.empty() || ::lstat(path_.c_str(), &found) != 0) return;
  if (found.st_dev == device_ && found.st_ino == inode_) ::unlink(path_.c_str());
}

}  // namespace quire::server
