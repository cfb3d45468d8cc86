// The operations of step/operations/operations.h on libtorch, for tensors on the CPU or a GPU.
//
// step/counting/counting_ops.h states the memory that each operation takes in addition to its result;
// tests/unit/operations compares both.
//
// Threads   one call at a time. No autograd: the caller holds bridge::NoAutograd.
// Failure   c10::Error from libtorch, neap::Error.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "bridge/attention.h"
#include "bridge/step_graphs.h"
#include "bridge/torch_dtypes.h"
#include "spec/job/job.h"
#include "step/attention/decoding.h"
#include "step/operations/fp8.h"
#include "step/operations/operations.h"
#include "step/pipeline/stage_links.h"

namespace neap::parallel {
class Communicator;
}

namespace neap::ops {

using bridge::to_aten;
using bridge::to_step;

/// The tensor-parallel and context-parallel groups of a model. They must outlive their users; null:
/// size one.
struct Peers {
  parallel::Communicator* tensor = nullptr;
  parallel::Communicator* context = nullptr;
  [[nodiscard]] parallel::Communicator* along(spec::Axis axis) const {
    if (axis == spec::Axis::kTensor) return tensor;
    return axis == spec::Axis::kContext ? context : nullptr;
  }
};

class AtenOps {
 public:
  using Tensor = at::Tensor;
  explicit AtenOps(at::Device device, bridge::KernelChoice kernels = {}, Peers peers = {})
      : device_(device), kernels_(kernels), peers_(peers) {}
  [[nodiscard]] at::Device device() const { return device_; }
  [[nodiscard]] bool cuda() const { return device_.is_cuda(); }

  // ---- stages of a pipeline ----
  /// `links` must outlive the operations; null: no other stages.
  void set_stages(step::StageLinks<Tensor>* links) { stages_ = links; }
  void send(const Tensor& t, std::int64_t stage) const { stages_->send(t, stage); }
  void receive_(const Tensor& t, std::int64_t stage) const { stages_->receive(t, stage); }
  [[nodiscard]] std::vector<double> join_stages(const std::vector<double>& mine) const {
    return stages_ == nullptr ? mine : stages_->join(mine);
  }

  // ---- graphs (step/generation/decode_graphs.h) ----
  /// `graphs` must outlive its use here; null: none.
  void set_graphs(bridge::StepGraphs* graphs) { graphs_ = graphs; }
  [[nodiscard]] bool graphs() const { return graphs_ != nullptr; }
  template <class Body>
  void graphed(const step::GraphKey& key, const Body& body) const {
    graphs_->run(key, body);
  }

  template <class Body>
  void repeat(std::int64_t n, const Body& body, std::int64_t /*lasting*/ = 1) const {
    for (std::int64_t i = 0; i < n; ++i) body(i);
  }
  template <class Body>
  void aside(const Body& body) const {
    body();
  }
  /// Runs body() with the kernels of generation (bridge/attention.h), without fp8.
  template <class Body>
  auto generating(const Body& body) {
    const Generating scope(generating_);
    return body();
  }

  /// Runs body(), which produces a token that the host waits for.
  template <class Body>
  auto one_token(const Body& body) const {
    return body();
  }

  // ---- ranks of an axis ----
  [[nodiscard]] std::int64_t ranks(spec::Axis axis) const;
  void sum_over_(const Tensor& a, spec::Axis axis) const;
  void max_over_(const Tensor& a, spec::Axis axis) const;
  [[nodiscard]] double total_over(double x, spec::Axis axis) const;
  [[nodiscard]] Tensor join_columns(Tensor a, spec::Axis axis) const;
  [[nodiscard]] Tensor own_columns(const Tensor& a, spec::Axis axis) const;
  [[nodiscard]] Tensor join_rows(const Tensor& a, spec::Axis axis) const;
  using Shift = std::int64_t;  ///< number of a shift in the communicator
  [[nodiscard]] Shift begin_shift(const Tensor& mine, const Tensor& theirs, spec::Axis axis) const;
  void finish_shift(Shift shift, spec::Axis axis) const;
  void end_shifts(spec::Axis axis) const;
  [[nodiscard]] Tensor own_rows(const Tensor& a, spec::Axis axis) const;
  [[nodiscard]] Tensor sum_to_rows(const Tensor& a, spec::Axis axis) const;
  [[nodiscard]] step::OwnIndices<Tensor> own_indices(const Tensor& indices, std::int64_t count,
                                                     spec::Axis axis) const;
  void clear_(const Tensor& a, const Tensor& foreign) const;
  [[nodiscard]] Tensor cleared(const Tensor& a, const Tensor& foreign) const;

  // ---- making ----
  [[nodiscard]] step::Dtype dtype(const Tensor& t) const { return to_step(t.scalar_type()); }
  [[nodiscard]] Tensor empty(const step::Shape& shape, step::Dtype dtype) const;
  [[nodiscard]] Tensor zeros(const step::Shape& shape, step::Dtype dtype) const;
  [[nodiscard]] Tensor ones_like(const Tensor& t) const;
  [[nodiscard]] Tensor filled_like(const Tensor& t, double value) const;  ///< () float32
  [[nodiscard]] Tensor clone(const Tensor& t) const;
  [[nodiscard]] Tensor iota(std::int64_t n, std::int64_t stride = 1) const;
  [[nodiscard]] Tensor from_host(const std::vector<float>& values) const;
  [[nodiscard]] Tensor from_host(const std::vector<std::int64_t>& values) const;
  [[nodiscard]] Tensor to_device(const Tensor& t) const;
  [[nodiscard]] Tensor to_host(const Tensor& t) const;
  [[nodiscard]] Tensor to_host_later(const Tensor& t) const { return to_pinned(t); }
  void wait_for_device() const;
  using Mark = std::optional<c10::Event>;  ///< none on the CPU
  [[nodiscard]] Mark mark() const;
  void wait_for(const Mark& mark) const {
    if (mark) mark->synchronize();
  }
  [[nodiscard]] Tensor to_pinned(const Tensor& t) const;
  [[nodiscard]] Tensor from_pinned(const Tensor& t) const;
  [[nodiscard]] double read(const Tensor& t) const;
  [[nodiscard]] std::vector<double> read_all(const Tensor& t) const;

  // ---- views ----
  [[nodiscard]] Tensor view(const Tensor& t, const step::Shape& shape) const;
  [[nodiscard]] Tensor transpose(const Tensor& t) const;
  [[nodiscard]] Tensor narrow(const Tensor& t, std::int64_t dimension, std::int64_t first,
                              std::int64_t count) const;
  [[nodiscard]] Tensor select(const Tensor& t, std::int64_t dimension, std::int64_t index) const;
  [[nodiscard]] Tensor by_head(const Tensor& x, std::int64_t sequences) const;
  [[nodiscard]] Tensor convert(Tensor t, step::Dtype dtype) const;

  // ---- products ----
  [[nodiscard]] Tensor product(const Tensor& a, const Tensor& b) const;
  [[nodiscard]] Tensor product_plus(const Tensor& bias, const Tensor& a, const Tensor& b) const;
  void add_product_(const Tensor& c, const Tensor& a, const Tensor& b, double alpha) const;
  [[nodiscard]] bool adds_products(step::Dtype sum, step::Dtype factors) const {
    return step::adds_products(device_.is_cuda(), sum, factors);
  }
  [[nodiscard]] Tensor batch_product(const Tensor& a, const Tensor& b) const;

  // ---- products in fp8 (aten_fp8.cpp) ----
  [[nodiscard]] bool fp8() const { return kernels_.fp8 && !generating_; }
  void to_fp8(step::Fp8Copies<Tensor>& copies, const Tensor& x, step::Fp8Format format,
              step::Fp8Sides sides) const;
  [[nodiscard]] Tensor fp8_product(const step::Fp8Factor<Tensor>& a,
                                   const step::Fp8Factor<Tensor>& b, step::Dtype dtype,
                                   step::Fp8Sums sums, const Tensor& bias) const;

  // ---- elementwise ----
  [[nodiscard]] Tensor add(const Tensor& a, const Tensor& b) const;
  [[nodiscard]] Tensor subtract(const Tensor& a, const Tensor& b) const;
  [[nodiscard]] Tensor multiply(const Tensor& a, const Tensor& b) const;
  [[nodiscard]] Tensor divide(const Tensor& a, const Tensor& b) const;
  [[nodiscard]] Tensor maximum(const Tensor& a, const Tensor& b) const;
  [[nodiscard]] Tensor minimum(const Tensor& a, const Tensor& b) const;
  [[nodiscard]] Tensor plus(const Tensor& a, std::int64_t b) const;
  [[nodiscard]] Tensor negate(const Tensor& a) const;
  [[nodiscard]] Tensor absolute(const Tensor& a) const;
  [[nodiscard]] Tensor sign(const Tensor& a) const;
  [[nodiscard]] Tensor exp(const Tensor& a) const;
  [[nodiscard]] Tensor cosine(const Tensor& a) const;
  [[nodiscard]] Tensor sine(const Tensor& a) const;
  [[nodiscard]] Tensor sigmoid(const Tensor& a) const;
  [[nodiscard]] Tensor log_sigmoid(const Tensor& a) const;
  [[nodiscard]] Tensor clamp(const Tensor& a, double low, double high) const;
  void add_(const Tensor& a, const Tensor& b) const;
  void add_(const Tensor& a, double b) const;
  void subtract_(const Tensor& a, const Tensor& b) const;
  void multiply_(const Tensor& a, const Tensor& b) const;
  void multiply_into(const Tensor& out, const Tensor& a, const Tensor& b) const;
  void divide_(const Tensor& a, const Tensor& b) const;
  void divide_(const Tensor& a, double b) const;
  void scale_(const Tensor& a, double b) const;
  void add_scaled_(const Tensor& a, const Tensor& b, double scale) const;
  void add_multiply_(const Tensor& a, const Tensor& b, const Tensor& c, double scale) const;
  void sqrt_(const Tensor& a) const;
  void rsqrt_(const Tensor& a) const;
  void exp_(const Tensor& a) const;
  void log_(const Tensor& a) const;
  void zero_(const Tensor& a) const;
  void copy_(const Tensor& a, const Tensor& b) const;
  [[nodiscard]] Tensor above(const Tensor& a, const Tensor& b) const;
  [[nodiscard]] Tensor above(const Tensor& a, double b) const;
  [[nodiscard]] Tensor at_least(const Tensor& a, const Tensor& b) const;
  [[nodiscard]] Tensor at_most(const Tensor& a, double b) const;
  [[nodiscard]] Tensor equal(const Tensor& a, const Tensor& b) const;
  void softcap_(const Tensor& a, double cap) const;
  [[nodiscard]] Tensor softcap_slope(const Tensor& a, double cap) const;
  [[nodiscard]] Tensor activate(const Tensor& a, spec::Activation kind) const;
  void activate_(const Tensor& a, spec::Activation kind) const;
  [[nodiscard]] Tensor activate_backward(const Tensor& dy, const Tensor& x,
                                         spec::Activation kind) const;

  // ---- Neap's kernels on a GPU (aten_own.cpp) ----
  [[nodiscard]] bool own_kernels(step::Dtype dtype) const { return kernels_.own.take(dtype); }
  void gate_into(const Tensor& out, const Tensor& gate, const Tensor& up,
                 spec::Activation kind) const;
  void gate_backward_into(const Tensor& d_gate, const Tensor& d_up, const Tensor& d,
                          const Tensor& gate, const Tensor& up, spec::Activation kind) const;
  [[nodiscard]] Tensor products(const Tensor& x, const Tensor& w) const;
  [[nodiscard]] Tensor norm_and_add_(spec::NormKind kind, const Tensor& x, const Tensor& weight,
                                     const Tensor& bias, double eps, const Tensor& added) const;
  [[nodiscard]] Tensor append_(const Tensor& keys, const Tensor& values, const Tensor& positions,
                               const step::Heads<Tensor>& heads,
                               const step::Rotation<Tensor>& rotation) const;
  [[nodiscard]] bool attends_itself(step::Dtype dtype, const step::DecodeSizes& sizes,
                                    const step::ScoreOptions& options) const {
    return step::decodes_by_own(kernels_.own, options, cuda(), dtype, sizes);
  }
  [[nodiscard]] Tensor append_and_attend_(const Tensor& keys, const Tensor& values,
                                          const Tensor& positions, const step::Heads<Tensor>& heads,
                                          const step::Rotation<Tensor>& rotation,
                                          const step::KeyLimit& limit,
                                          const step::ScoreOptions& options) const;
  [[nodiscard]] Tensor append_and_attend_pages_(const step::PagedKeys<Tensor>& cache,
                                                const Tensor& positions,
                                                const step::Heads<Tensor>& heads,
                                                const step::Rotation<Tensor>& rotation,
                                                const step::KeyLimit& limit,
                                                const step::ScoreOptions& options) const;
  [[nodiscard]] bool own_few_rows(step::Dtype dtype, std::int64_t rows, std::int64_t in,
                                  std::int64_t out) const {
    return kernels_.own.row_product(dtype, rows, in, out) != step::RowProduct::kLibrary;
  }
  [[nodiscard]] bool own_normed_rows(step::Dtype dtype, std::int64_t rows, std::int64_t in,
                                     std::int64_t out) const {
    return kernels_.own.normalizes(dtype, rows, in, out);
  }
  [[nodiscard]] Tensor few_rows_products(const Tensor& x,
                                         const step::FewMatrices<Tensor>& by) const;
  [[nodiscard]] Tensor few_rows_activated(const Tensor& x, const step::FewMatrices<Tensor>& by,
                                          spec::Activation kind) const;
  void add_few_rows_(const Tensor& sum, const Tensor& x, const Tensor& w, const Tensor& bias) const;
  [[nodiscard]] Tensor few_rows_gated(const Tensor& x, const step::FewMatrices<Tensor>& by,
                                      spec::Activation kind) const;
  void add_row_adapters_(const Tensor& y, const step::RowAdapters<Tensor>& by) const;
  void add_adapted_rows_(const Tensor& sum, const Tensor& y,
                         const step::RowAdapters<Tensor>& by) const;
  [[nodiscard]] Tensor gate_adapted_rows(const Tensor& y, const step::RowAdapters<Tensor>& by,
                                         spec::Activation kind) const;
  void logit_values_into(const Tensor& log_probs, const Tensor& log_sums, const Tensor& entropies,
                         const Tensor& rights, const Tensor& logits, const Tensor& targets,
                         const step::LogitShape& shape) const;
  void logit_gradient_(const Tensor& logits, const Tensor& targets, const Tensor& log_sums,
                       const Tensor& d_log_probs, const Tensor& entropies,
                       const Tensor& d_entropies, const step::LogitShape& shape) const;
  [[nodiscard]] bool own_draw(step::Dtype dtype, std::int64_t columns, bool in_order) const {
    return kernels_.own.draw(dtype, columns, in_order);
  }
  void draw_into(const Tensor& tokens, const Tensor& log_probs, const Tensor& scratch,
                 const Tensor& logits, const Tensor& uniforms, const step::TokenDraw& by) const;
  [[nodiscard]] bool own_norm_rows(step::Dtype dtype, std::int64_t columns) const {
    return kernels_.own.norm_rows(dtype, columns);
  }
  /// y and rstd, as norm() of spec::NormKind::kRms. Requires own_norm_rows().
  [[nodiscard]] std::pair<Tensor, Tensor> own_rms_norm(const Tensor& x, const Tensor& weight,
                                                       double eps) const;
  [[nodiscard]] Tensor own_rms_norm_backward(spec::NormKind kind, const Tensor& dy, const Tensor& x,
                                             const Tensor& rstd, const Tensor& weight,
                                             const Tensor& d_weight, const Tensor& added) const;
  void own_add_to_rows_(const Tensor& table, const Tensor& indices, const Tensor& rows) const;
  void own_adamw_(const step::AdamWTensors<Tensor>& t, double scale, std::int64_t step, double lr,
                  const spec::OptimizerConfig& config) const;

  // ---- reductions ----
  [[nodiscard]] Tensor sum(const Tensor& a) const;
  [[nodiscard]] Tensor sum_last(const Tensor& a) const;
  [[nodiscard]] Tensor max_last(const Tensor& a) const;
  [[nodiscard]] Tensor max_rows(const Tensor& a) const;
  [[nodiscard]] Tensor sum_rows(const Tensor& a, step::Dtype dtype) const;
  [[nodiscard]] Tensor argmax_last(const Tensor& a) const;
  [[nodiscard]] Tensor softmax_last(const Tensor& a) const;
  [[nodiscard]] step::Sorted<Tensor> sort_descending(const Tensor& a) const;
  void cumulate_last_(const Tensor& a) const;
  void drop_beyond_mass_(const Tensor& a, double top_p) const;
  void drop_below_(const Tensor& a, double share) const;
  void penalize_(const Tensor& a, const Tensor& seen, const Tensor& amounts,
                 double repetition) const;
  [[nodiscard]] Tensor search_last(const Tensor& a, const Tensor& target) const;

  // ---- indices ----
  [[nodiscard]] Tensor take_rows(const Tensor& table, const Tensor& indices) const;
  [[nodiscard]] Tensor take_rows_from_host(const Tensor& table, const Tensor& indices) const;
  void add_to_rows_(const Tensor& table, const Tensor& indices, const Tensor& rows) const;
  void put_rows_(const Tensor& table, const Tensor& indices, const Tensor& rows) const;
  void put_heads_(const Tensor& table, const Tensor& places, const Tensor& heads) const;
  void put_numbers_(const Tensor& to, const std::vector<std::int64_t>& values) const;
  [[nodiscard]] Tensor page_places(const Tensor& table, const Tensor& positions,
                                   std::int64_t key_heads) const;
  [[nodiscard]] Tensor page_parts(const Tensor& table, std::int64_t key_heads) const;
  [[nodiscard]] Tensor gather_last(const Tensor& a, const Tensor& indices) const;
  void add_to_last_(const Tensor& a, const Tensor& indices, const Tensor& values) const;
  [[nodiscard]] Tensor last_rows(const Tensor& lengths, std::int64_t length) const;

  // ---- kernels ----
  [[nodiscard]] step::NormResult<Tensor> norm(spec::NormKind kind, const Tensor& x,
                                              const Tensor& weight, const Tensor& bias,
                                              double eps) const;
  [[nodiscard]] Tensor norm_backward(spec::NormKind kind, const Tensor& dy, const Tensor& x,
                                     const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                                     const Tensor& d_weight, const Tensor& d_bias) const;
  [[nodiscard]] Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin,
                              bool inverse) const;
  [[nodiscard]] step::AttentionContext<Tensor> attention(step::Heads<Tensor> heads,
                                                         const step::Spans<Tensor>& spans,
                                                         const step::ScoreOptions& options) const;
  [[nodiscard]] step::AttentionContext<Tensor> attention_by(
      step::AttentionKernel kernel, step::Heads<Tensor> heads, const step::Spans<Tensor>& spans,
      const step::ScoreOptions& options) const;
  [[nodiscard]] step::AttentionContext<Tensor> attention_of_ranges(
      const step::Heads<Tensor>& heads, const step::PackedRanges<Tensor>& ranges,
      const step::ScoreOptions& options) const;
  [[nodiscard]] step::Heads<Tensor> attention_of_ranges_backward(
      step::AttentionContext<Tensor> saved, const step::PackedRanges<Tensor>& ranges,
      Tensor d_out) const;
  [[nodiscard]] Tensor starts_of(const std::vector<std::int64_t>& lengths) const;
  [[nodiscard]] std::pair<Tensor, Tensor> places_of(const std::vector<std::int64_t>& lengths,
                                                    std::int64_t ranks) const;
  [[nodiscard]] step::Heads<Tensor> attention_backward(step::AttentionContext<Tensor> saved,
                                                       Tensor d_out) const;
  [[nodiscard]] Tensor causal_mask(std::int64_t queries, std::int64_t keys, std::int64_t offset,
                                   std::int64_t window) const;
  void hide_(const Tensor& a, const Tensor& mask) const;
  [[nodiscard]] Tensor decode_mask(const Tensor& positions, std::int64_t key_limit,
                                   std::int64_t window, step::Dtype dtype) const;
  [[nodiscard]] step::DecodeKeys<Tensor> decode_keys(const Tensor& positions, const Tensor& cache,
                                                     std::int64_t heads, std::int64_t key_limit,
                                                     const step::ScoreOptions& options) const;
  [[nodiscard]] Tensor decode_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                                        const step::DecodeKeys<Tensor>& seen,
                                        const step::ScoreOptions& options) const;
  [[nodiscard]] Tensor chunk_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                                       const step::ScoreOptions& options) const;
  void write_prompts_(const Tensor& cache, const Tensor& slots, const Tensor& rows,
                      std::int64_t length) const;
  void write_token_(const Tensor& cache, const Tensor& positions, const Tensor& rows) const;

  // ---- optimizer ----
  [[nodiscard]] Tensor norm_of(const Tensor& a) const;
  void fused_adamw_(const Tensor& x, const Tensor& g, const Tensor& average, const Tensor& square,
                    const Tensor& count, double lr, const spec::OptimizerConfig& config) const;
  void fused_sgd_(const Tensor& x, const Tensor& g, const Tensor& momentum, double lr,
                  const spec::OptimizerConfig& config) const;
  [[nodiscard]] Tensor rounding_noise(std::uint64_t key, std::int64_t n) const;
  void round_stochastically_(const Tensor& to, const Tensor& value, const Tensor& noise,
                             std::uint64_t key, std::int64_t first) const;

 private:
  class Generating {
   public:
    explicit Generating(bool& flag) : flag_(flag), before_(std::exchange(flag, true)) {}
    Generating(const Generating&) = delete;
    Generating& operator=(const Generating&) = delete;
    ~Generating() { flag_ = before_; }

   private:
    bool& flag_;
    bool before_;
  };
  [[nodiscard]] step::AttentionKernel kernel_of(const Tensor& q, const step::ScoreOptions& options,
                                                const step::Spans<Tensor>& spans) const;
  /// By Neap's kernel.
  [[nodiscard]] Tensor turned(const Tensor& x, const Tensor& cos, const Tensor& sin,
                              double sign) const;
  [[nodiscard]] Tensor rms_norm_backward_on_host(const Tensor& dy, const Tensor& x,
                                                 const Tensor& rstd, const Tensor& weight,
                                                 const Tensor& d_weight, bool offset) const;
  /// A copy of host values with another type. On a GPU it is pinned, so that a copy of it to the
  /// device need not wait for earlier work.
  [[nodiscard]] Tensor staged(const Tensor& t, at::ScalarType type) const;
  /// Copies host values to the device and converts them, without a wait.
  [[nodiscard]] Tensor upload(const Tensor& t, at::ScalarType type) const;
  [[nodiscard]] Tensor from_values(const void* values, std::int64_t count,
                                   at::ScalarType type) const;
  /// The communicator of an axis with several ranks.
  [[nodiscard]] parallel::Communicator& along(spec::Axis axis) const { return *peers_.along(axis); }
  at::Device device_;
  bridge::KernelChoice kernels_;
  step::StageLinks<Tensor>* stages_ = nullptr;
  Peers peers_;
  bridge::StepGraphs* graphs_ = nullptr;
  bool generating_ = false;
};

}  // namespace neap::ops
