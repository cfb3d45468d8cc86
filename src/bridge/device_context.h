// The context in which a job computes: the open device, the choice of kernels, and libtorch's
// process-wide settings.
//
// Model     libtorch's settings are the job's only while its context is entered. Leaving restores
//           the previous ones. So runtimes with different settings can take turns in one process.
//           Entered applies TorchSettings and, on a GPU, the stream. The CPU allocator
//           (phase_allocator.h) and the limit of libtorch's CUDA allocator (torch_cuda_memory.h)
//           are set only during the job's phases. A backward pass of attention enables
//           deterministic algorithms if the job requires them (attention.h).
// Threads   enter and leave a context on the thread that computes, because libtorch keeps the
//           number of threads per thread. Nested contexts are left in reverse order.
// Failure   neap::Error when a device is opened.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <memory>

#include "bridge/attention.h"
#include "bridge/compute_stream.h"
#include "device/device.h"
#include "plan/rates/device_choice.h"
#include "spec/job/job.h"

namespace neap::bridge {

/// Compiles and loads Neap's kernels for the GPU with this number; fails if they do not run. About
/// a second if they are not on the disk, else milliseconds.
[[nodiscard]] Status load_own_kernels(int ordinal);

/// The device of a run, chosen among the GPUs that libtorch can use, and whether Neap's kernels run.
[[nodiscard]] plan::DeviceChoice choose_run_device(const spec::DeviceConfig& config);

/// Settings that change libtorch's results, or the order of its sums.
struct TorchSettings {
  int threads = 1;  ///< for kernels of the calling thread
  bool deterministic = false, warn_only = false;
  at::Float32MatmulPrecision float32 = at::Float32MatmulPrecision::HIGHEST;  ///< HIGH: TF32

  [[nodiscard]] static TorchSettings now();
  /// Applies settings that differ. It costs nothing, except that a changed number of threads
  /// restarts libtorch's threads.
  void install() const;
  friend bool operator==(const TorchSettings&, const TorchSettings&) = default;
};

class DeviceContext {
 public:
  /// Opens the chosen device. The job's settings are libtorch's current ones, with the choice's
  /// number of threads. Later changes by the process do not affect the job.
  DeviceContext(const spec::Job& job, const plan::DeviceChoice& choice);

  [[nodiscard]] const std::shared_ptr<device::Device>& device() const { return device_; }
  /// libtorch's name of the device.
  [[nodiscard]] at::Device torch() const { return torch_; }
  /// The type of forward and backward.
  [[nodiscard]] at::ScalarType dtype() const { return dtype_; }
  [[nodiscard]] KernelChoice kernels() const { return kernels_; }
  /// The stream that computes while the context is entered.
  [[nodiscard]] device::StreamId stream() const { return stream_.id(); }

  /// Applies the context's settings and stream to libtorch while it lives. For the cost see
  /// TorchSettings::install. On a GPU it adds two events if another stream was current.
  class Entered {
   public:
    explicit Entered(const DeviceContext& context);
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;
    ~Entered();

   private:
    TorchSettings before_;
    ComputeStream::Current stream_;
  };

 private:
  std::shared_ptr<device::Device> device_;
  at::Device torch_;
  ComputeStream stream_;
  at::ScalarType dtype_ = at::kFloat;
  TorchSettings settings_;
  KernelChoice kernels_;
};

}  // namespace neap::bridge
