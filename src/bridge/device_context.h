// What a job computes with: the opened device, the choice of kernels, and the settings that libtorch has once a process.
//
// Model     A setting of libtorch is the job's only while the job's context is entered; leaving puts back what was there.
//           So runtimes with different settings work in one process, one after the other or in turns. Entered is for
//           TorchSettings and, on a GPU, the stream. The CPU allocator (phase_allocator.h) and the limit of libtorch's CUDA allocator
//           (torch_cuda_memory.h) are the job's while one of its phases is open; a backward pass of attention turns
//           deterministic algorithms on where the job asks for them (attention.h).
//
// Threads   A context is entered and left on the thread that computes: libtorch keeps the number of threads for each
//           thread. Contexts that are entered inside each other are left in the reverse order.
//
// Failure   neap::Error, when a device is opened.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <memory>

#include "bridge/attention.h"
#include "bridge/compute_stream.h"
#include "device/device.h"
#include "plan/device_choice.h"
#include "spec/job.h"

namespace neap::bridge {

/// The choice of a run: GPUs are those that libtorch can use.
[[nodiscard]] plan::DeviceChoice choose_run_device(const spec::DeviceConfig& config);

/// Settings that change what libtorch computes, or in which order it adds.
struct TorchSettings {
  int threads = 1;  ///< of the calling thread's kernels
  bool deterministic = false, warn_only = false;
  at::Float32MatmulPrecision float32 = at::Float32MatmulPrecision::HIGHEST;  ///< HIGH: TF32

  [[nodiscard]] static TorchSettings now();
  /// Sets what differs. Cost: nothing, but that another number of threads makes libtorch start its threads again.
  void install() const;
  friend bool operator==(const TorchSettings&, const TorchSettings&) = default;
};

class DeviceContext {
 public:
  /// Opens what was chosen. The job's settings are those that libtorch has now, with the choice's threads: what the process
  /// sets later does not change the job.
  DeviceContext(const spec::Job& job, const plan::DeviceChoice& choice);

  [[nodiscard]] const std::shared_ptr<device::Device>& device() const { return device_; }
  /// How libtorch names the device.
  [[nodiscard]] at::Device torch() const { return torch_; }
  /// Of forward and backward.
  [[nodiscard]] at::ScalarType dtype() const { return dtype_; }
  [[nodiscard]] AttentionChoice attention() const { return attention_; }
  /// Of what is computed while the context is entered.
  [[nodiscard]] device::StreamId stream() const { return stream_.id(); }

  /// While it lives, libtorch has the context's settings and stream. Cost: see TorchSettings::install; on a GPU two
  /// events besides, where another stream was current.
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
  AttentionChoice attention_;
};

}  // namespace neap::bridge
