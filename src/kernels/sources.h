// The CUDA C++ of Neap's kernels: the files of src/kernels/cuda, embedded in the program.
#pragma once

#include <span>
#include <string_view>

namespace neap::kernels {

struct Source {
  std::string_view name;  ///< of the file, without .cu
  std::string_view text;  ///< includes no other file
};
[[nodiscard]] std::span<const Source> sources();

}  // namespace neap::kernels
