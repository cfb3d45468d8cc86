#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "model/transformer.h"

namespace neap::model {
namespace {

using at::Tensor;

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Fills on the host in float32, a bounded piece at a time: the same values on every device.
template <class Fill>
void fill(const Tensor& weight, Fill fill_piece) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 22;
  Tensor flat = weight.view(-1);
  for (std::int64_t first = 0; first < flat.numel(); first += kPiece) {
    Tensor piece = at::empty({std::min(kPiece, flat.numel() - first)}, at::dtype(at::kFloat));
    fill_piece(piece);
    flat.narrow(0, first, piece.numel()).copy_(piece);
  }
}

}  // namespace

void initialize(Transformer& model, std::uint64_t seed, double standard_deviation) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const bool offset = model.architecture().norm == spec::NormKind::kRmsOffset;
  for (const NamedParameter& p : model.parameters()) {
    if (ends_with(p.name, ".bias") || p.name == "score.weight") {
      Tensor(p.weight).zero_();
    } else if (p.weight.dim() == 1) {
      Tensor(p.weight).fill_(offset ? 0 : 1);  // a norm's: its gain is one
    } else {
      fill(p.weight, [&](Tensor& piece) { piece.normal_(0, standard_deviation, generator); });
    }
  }
  initialize_adapters(model, seed + 1);
}

void initialize_adapters(Transformer& model, std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (const NamedParameter& p : model.adapters()) {
    if (ends_with(p.name, ".lora_A.weight")) {
      const double bound = 1 / std::sqrt(static_cast<double>(p.weight.size(1)));
      fill(p.weight, [&](Tensor& piece) { piece.uniform_(-bound, bound, generator); });
    } else {
      Tensor(p.weight).zero_();
    }
  }
}

}  // namespace neap::model
