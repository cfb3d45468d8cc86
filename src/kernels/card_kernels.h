// Neap's kernels on one GPU: compiled or read from the disk and loaded when first used, launched by name.
//
// Model     A file of kernels is loaded once a process and card, into its primary context, and stays.
//
// Threads   any.
// Failure   kInternal with the compiler's log, kDriver.
// Cost      the first launch of a file's kernels: some milliseconds, about a second where they are not on the disk. A
//           launch: a look-up and a driver call.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>

#include "device/cuda/context.h"
#include "kernels/compiler.h"

namespace neap::kernels {

struct Grid {
  std::int64_t x = 1, y = 1;
  std::int64_t threads = 1;  ///< of a block
  std::int64_t z = 1;
  /// The kernel may start before the one in front of it has ended: it waits for that itself (types.cuh).
  bool early = false;
};

class CardKernels {
 public:
  /// The kernels for the GPU with this number. They belong to the process.
  [[nodiscard]] static Result<CardKernels*> of(int ordinal);

  /// `folder`: of compiled kernels (cubins.h).
  CardKernels(const Compiler& compiler, const device::cuda::Card& card, int architecture,
              std::filesystem::path folder);

  /// Compiles what is not on the disk, and loads all. Later launches find everything.
  [[nodiscard]] Status load_all();

  /// Starts `kernel` of a source on a stream of the card. Its parameters are the arguments, which have the types that
  /// it declares.
  template <class... Arguments>
  [[nodiscard]] Status launch(std::string_view source, std::string_view kernel, const Grid& grid,
                              device::cuda::Stream stream, Arguments... arguments) {
    static_assert((std::is_trivially_copyable_v<Arguments> && ...));
    std::array<void*, sizeof...(Arguments)> parameters{&arguments...};
    return launch_with(source, kernel, grid, stream, parameters.data());
  }

 private:
  using Named = std::map<std::string, device::cuda::Function, std::less<>>;
  struct File {
    device::cuda::Module module = nullptr;
    Named kernels;
  };
  [[nodiscard]] Status launch_with(std::string_view source, std::string_view kernel,
                                   const Grid& grid, device::cuda::Stream stream,
                                   void** parameters);
  /// With the mutex held.
  [[nodiscard]] Result<device::cuda::Function> find(std::string_view source,
                                                    std::string_view kernel);
  [[nodiscard]] Result<File*> load(std::string_view source);
  [[nodiscard]] Result<File> load(const Source& source) const;

  const Compiler& compiler_;
  device::cuda::Card card_;
  int architecture_;
  std::filesystem::path folder_;
  std::mutex mutex_;
  std::map<std::string, File, std::less<>> files_;
};

}  // namespace neap::kernels
