#include "hook/hand_over_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/format.h"

namespace neap::hook {
namespace {

Status io(std::string_view what, const std::string& path, int error) {
  return {ErrorCode::kIo, format("Cannot {} {}: {}", what, path, system_reason(error))};
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Status(ErrorCode::kInvalidArgument,
                  format("A socket path must have 1 to {} bytes; this one has {}: {}",
                         sizeof address.sun_path - 1, path.size(), path));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Result<Descriptor> new_socket(const std::string& path) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return io("make a socket for", path, errno);
  return socket;
}

std::string lock_path(const std::string& path) {
  return path + ".lock";
}

bool is_at(const std::string& path, dev_t device, ino_t inode) {
  struct stat there {};
  return ::lstat(path.c_str(), &there) == 0 && there.st_dev == device && there.st_ino == inode;
}

bool is_at(const std::string& path, const Descriptor& file) {
  struct stat ours {};
  return ::fstat(file.get(), &ours) == 0 && is_at(path, ours.st_dev, ours.st_ino);
}

Result<Descriptor> take_lock(const std::string& path) {
  const std::string file = lock_path(path);
  while (true) {
    Descriptor lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (lock.get() < 0) return io("open", file, errno);
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return io("lock", file, errno);
      return Status(ErrorCode::kAlreadyExists,
                    format("Another exporter uses {} and holds the lock on {}. Close that "
                           "exporter or use another path",
                           path, file));
    }
    // Its last owner may have removed the file between the two calls.
    if (is_at(file, lock)) return lock;
  }
}

/// Removes a socket without a listener, which a killed owner left. The caller holds the lock.
Status remove_left_socket(const std::string& path) {
  struct stat about {};
  if (::lstat(path.c_str(), &about) != 0) return {};
  if (!S_ISSOCK(about.st_mode)) {
    return {ErrorCode::kAlreadyExists, path + " exists and is not a socket"};
  }
  const auto answer = connect_to(path);
  if (answer.ok()) {
    return {
        ErrorCode::kAlreadyExists,
        format("Another program is listening at {}. Close that program or use another path", path)};
  }
  if (answer.status().code() != ErrorCode::kNotFound) return answer.status();
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return io("remove", path, errno);
  return {};
}

}  // namespace

Status OwnerSocket::open(const std::string& path) {
  if (const auto address = address_of(path); !address.ok()) return address.status();
  std::error_code error;
  path_ = std::filesystem::absolute(path, error).string();
  if (error) return {ErrorCode::kIo, format("Cannot find {}: {}", path, error.message())};
  NEAP_TRY_ASSIGN(lock_, take_lock(path));
  Status outcome = listen_at(path);
  if (!outcome.ok()) close();
  return outcome;
}

Status OwnerSocket::listen_at(const std::string& path) {
  NEAP_TRY_ASSIGN(const sockaddr_un address, address_of(path));
  NEAP_TRY(remove_left_socket(path));
  NEAP_TRY_ASSIGN(Descriptor socket, new_socket(path));
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  // Set the mode before bind, so that no other user can connect in between.
  ::fchmod(socket.get(), 0600);
  if (::bind(socket.get(), generic, sizeof address) != 0) return io("bind", path, errno);
  struct stat made {};
  if (::lstat(path.c_str(), &made) != 0) return io("find", path, errno);
  device_ = made.st_dev;
  inode_ = made.st_ino;
  listener_ = std::move(socket);
  if (::chmod(path.c_str(), 0600) != 0 || ::listen(listener_.get(), 64) != 0) {
    return io("listen at", path, errno);
  }
  return {};
}

void OwnerSocket::close() {
  if (lock_.get() < 0) return;
  if (listener_.get() >= 0 && is_at(path_, device_, inode_)) ::unlink(path_.c_str());
  listener_ = Descriptor();
  // Remove the file before unlocking it: a process that locks it afterwards sees that it has no
  // name.
  if (is_at(lock_path(path_), lock_)) ::unlink(lock_path(path_).c_str());
  ::flock(lock_.get(), LOCK_UN);  // unlock explicitly: a forked child may also have the descriptor
  lock_ = Descriptor();
}

Result<Descriptor> connect_to(const std::string& path) {
  NEAP_TRY_ASSIGN(const sockaddr_un address, address_of(path));
  NEAP_TRY_ASSIGN(Descriptor socket, new_socket(path));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == ENOENT || errno == ECONNREFUSED) {
      return Status(ErrorCode::kNotFound, "No exporter is listening at " + path);
    }
    return io("connect to", path, errno);
  }
  return socket;
}

bool peer_is_same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == ::geteuid() || peer.uid == 0;
}

}  // namespace neap::hook
