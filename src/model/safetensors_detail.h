// Shared by the reader, the writer and the folder of shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/safetensors.h"

namespace neap::model::detail {

/// A name for a message: a hostile one must not fill the terminal.
[[nodiscard]] std::string shown(std::string_view name);
[[noreturn]] void corrupt(const std::filesystem::path& path, const std::string& what);
[[noreturn]] void io_error(std::string_view verb, const std::filesystem::path& path, int number);
/// "[2, 3]", cut after 16 dimensions.
[[nodiscard]] std::string shape_text(const std::vector<std::int64_t>& shape);
/// By dtype and shape; nothing when the product overflows or is no whole number of bytes.
[[nodiscard]] std::optional<std::uint64_t> bytes_by_shape(const std::string& dtype,
                                                          const std::vector<std::int64_t>& shape);
/// As bytes_by_shape of what is to be written; throws.
[[nodiscard]] std::uint64_t bytes_of(const TensorInfo& tensor);

/// An open file.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] int close_now();

 private:
  int fd_;
};

}  // namespace neap::model::detail
