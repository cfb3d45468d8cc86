// The socket path where an owner listens and guests connect.
//
// Model     An owner holds the lock on PATH.lock for its life, so a path has one owner. The socket
//           of a killed owner is replaced. An owner removes only files that it made.
//
// Threads   one at a time.
//
// Failure   kAlreadyExists if the path is in use, kNotFound if no owner listens, else kIo.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/status.h"
#include "hook/hand_over_message.h"

namespace neap::hook {

class OwnerSocket {
 public:
  OwnerSocket() = default;
  OwnerSocket(const OwnerSocket&) = delete;
  OwnerSocket& operator=(const OwnerSocket&) = delete;
  ~OwnerSocket() { close(); }
  /// Listens at `path`, mode 0600.
  [[nodiscard]] Status open(const std::string& path);
  void close();
  [[nodiscard]] int descriptor() const { return listener_.get(); }

 private:
  [[nodiscard]] Status listen_at(const std::string& path);

  std::string path_;  ///< absolute: the working folder may change
  Descriptor lock_, listener_;
  dev_t device_ = 0;  ///< device of the socket's name, with inode_
  ino_t inode_ = 0;
};

[[nodiscard]] Result<Descriptor> connect_to(const std::string& path);
/// Whether the peer process runs as this user or as root.
[[nodiscard]] bool peer_is_same_user(int socket);

}  // namespace neap::hook
