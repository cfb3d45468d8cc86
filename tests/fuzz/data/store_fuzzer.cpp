// Any bytes as a stored row, and as a file of stored rows.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "data/row_store.h"
#include "data/stored_row.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void read_row(std::string_view bytes) {
  const auto row = neap::data::unpack(bytes);
  if (!row.ok()) return;
  const std::string again = neap::data::pack(*row);
  const auto same = neap::data::unpack(again);
  check(same.ok() && neap::data::pack(*same) == again);
}

// The file ends with its key: 104 bytes from the end stand four numbers, then 32 bytes of key.
void read_file(const std::uint8_t* data, std::size_t size) {
  const int fd = ::memfd_create("rows", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string key(size < 104 ? "" : all.substr(size - 104 + 32, 32));
  const auto store = neap::data::RowStore::open("/proc/self/fd/" + std::to_string(fd), key);
  if (store.ok()) {
    for (std::uint64_t i = 0; i < store->size() && i < 100; ++i) {
      const auto row = store->row(i);
      if (row.ok()) read_row(*row);
    }
  }
  ::close(fd);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read_row({reinterpret_cast<const char*>(data), size});
  read_file(data, size);
  return 0;
}
