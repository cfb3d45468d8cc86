// Between the files that read checkpoints; nobody else's.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/safetensors.h"

namespace neap::model::detail {

/// Copies a file's tensor into `target` (contiguous, of its shape; any device and dtype of its kind) through a host
/// buffer. Fails naming file and tensor.
void read_into(const SafetensorsFile& file, const TensorEntry& entry, const at::Tensor& target);

}  // namespace neap::model::detail
