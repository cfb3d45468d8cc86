// Neap's kernels on one GPU, launched by name. On first use they are compiled, or read from the
// disk, and loaded.
//
// Model     A source's kernels are loaded once per process and GPU, into its primary context, and
//           stay loaded.
//
// Threads   any.
// Failure   kInternal with the compiler's log, kDriver.
// Cost      the first launch from a source takes milliseconds, or about a second if it must be
//           compiled. Later ones take a look-up and a driver call.
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
  /// The kernel may start before the previous one has ended, and then waits for it (types.cuh).
  bool early = false;
  std::int64_t cluster = 1;  ///< neighbours along x that share memory
  std::int64_t shared = 0;   ///< bytes of shared memory whose size the launch sets
};

class CardKernels {
 public:
  /// The kernels for the GPU with this number. They belong to the process.
  [[nodiscard]] static Result<CardKernels*> of(int ordinal);

  /// `folder` has the compiled kernels (cubins.h).
  CardKernels(const Compiler& compiler, const device::cuda::Card& card, int architecture,
              std::filesystem::path folder);

  /// Loads all kernels, and first compiles those that are not on the disk.
  [[nodiscard]] Status load_all();

  /// Launches `kernel` of a source on a stream of the GPU. The arguments must have the declared
  /// types of its parameters.
  template <class... Arguments>
  [[nodiscard]] Status launch(std::string_view source, std::string_view kernel, const Grid& grid,
                              device::cuda::Stream stream, Arguments... arguments) {
    static_assert((std::is_trivially_copyable_v<Arguments> && ...));
    std::array<void*, sizeof...(Arguments)> parameters{&arguments...};
    return launch_with(source, kernel, grid, stream, parameters.data());
  }

 private:
  struct Kernel {
    device::cuda::Function function = nullptr;
    std::int64_t shared = 0;  ///< that its launches may set
  };
  using Named = std::map<std::string, Kernel, std::less<>>;
  struct File {
    device::cuda::Module module = nullptr;
    Named kernels;
  };
  [[nodiscard]] Status launch_with(std::string_view source, std::string_view kernel,
                                   const Grid& grid, device::cuda::Stream stream,
                                   void** parameters);
  /// With the mutex held.
  [[nodiscard]] Result<device::cuda::Function> find(std::string_view source,
                                                    std::string_view kernel, std::int64_t shared);
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
