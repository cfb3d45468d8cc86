#include "model/head.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "base/format.h"
#include "base/status.h"

namespace neap::model::head {

using at::Tensor;

namespace {

// A head's turn in a walk. A tied head reads the embedding's unit beside its own.
class HeadScope {
 public:
  HeadScope(const Network& net, Direction direction) : net_(net), direction_(direction) {
    if (reads_embedding()) net_.before(direction_, 0);
    if (net_.head_unit() != 0) net_.before(direction_, net_.head_unit());
  }
  ~HeadScope() noexcept(false) {
    if (std::uncaught_exceptions() > 0) return;
    if (net_.head_unit() != 0) net_.after(direction_, net_.head_unit());
    if (reads_embedding()) net_.after(direction_, 0);
  }
  HeadScope(const HeadScope&) = delete;
  HeadScope& operator=(const HeadScope&) = delete;

 private:
  [[nodiscard]] bool reads_embedding() const {
    return net_.head == spec::Head::kLanguageModel && net_.shape.tie_word_embeddings;
  }
  const Network& net_;
  Direction direction_;
};

void require(const Network& net, spec::Head head, const char* what) {
  if (net.head != head)
    throw Error(ErrorCode::kInvalidArgument, format("This model's head gives no {}", what));
}

// Walks the rows that a head reads, a chunk at a time.
class Chunks {
 public:
  Chunks(const Tensor& hidden, const Tensor& rows, std::int64_t chunk_elements, std::int64_t width)
      : hidden_(hidden),
        rows_(rows),
        count_(rows.defined() ? rows.size(0) : hidden.size(0)),
        step_(std::max<std::int64_t>(1, chunk_elements / width)) {}

  [[nodiscard]] std::int64_t count() const { return count_; }
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::int64_t first = 0; first < count_; first += step_)
      visit(first, std::min(step_, count_ - first));
  }
  [[nodiscard]] Tensor hidden(std::int64_t first, std::int64_t n) const {
    return rows_.defined() ? hidden_.index_select(0, rows_.narrow(0, first, n))
                           : hidden_.narrow(0, first, n);
  }
  /// d_hidden += d at the chunk's rows.
  void add(Tensor& d_hidden, std::int64_t first, std::int64_t n, const Tensor& d) const {
    if (rows_.defined()) {
      ops::add_rows(d_hidden, rows_.narrow(0, first, n), d);
    } else {
      d_hidden.narrow(0, first, n).add_(d);
    }
  }
  void check(const Tensor& per_row, const char* what) const {
    if (per_row.dim() != 1 || per_row.size(0) != count_)
      throw Error(
          ErrorCode::kInvalidArgument,
          format("The head reads {} rows but {} has {} elements", count_, what, per_row.numel()));
  }

 private:
  Tensor hidden_, rows_;
  std::int64_t count_;
  std::int64_t step_;
};

// Wide logits over the temperature, in memory of their own.
Tensor scaled_logits(const Tensor& z, const Tensor& weight, double temperature) {
  Tensor logits = at::mm(z, weight.t()).to(ops::wide_type(z.scalar_type()));
  return temperature == 1.0 ? logits : logits.div_(temperature);
}

struct RowValues {
  Tensor log_prob, entropy, log_sum;  // (n,)
};

// Reads the chunk's logits (n, V) and destroys them.
RowValues reduce_logits(Tensor logits, const Tensor& targets, bool entropy) {
  const Tensor chosen = logits.gather(1, targets.unsqueeze(1)).squeeze(1);
  const Tensor top = logits.amax(1, /*keepdim=*/true);
  logits.sub_(top);
  Tensor weighted;
  Tensor sum;
  if (entropy) {
    Tensor e = logits.exp();
    sum = e.sum(1);
    weighted = e.mul_(logits).sum(1).div_(sum);  // E[logit - top]
  } else {
    sum = logits.exp_().sum(1);
  }
  const Tensor log_sum_above_top = sum.log_();
  RowValues values;
  if (entropy) values.entropy = log_sum_above_top - weighted;
  values.log_sum = log_sum_above_top + top.squeeze(1);
  values.log_prob = chosen - values.log_sum;
  return values;
}

// d loss / d logits before the division by the temperature, in the logits' memory.
Tensor logits_gradient(Tensor logits, const Tensor& targets, const Tensor& log_sum,
                       const Tensor& d_log_prob, const Tensor& entropy, const Tensor& d_entropy,
                       double temperature) {
  logits.sub_(log_sum.unsqueeze(1));  // log p
  if (d_entropy.defined()) {
    const Tensor p = logits.exp();
    // dH/dlogit_j = -p_j (log p_j + H)
    logits.add_(entropy.unsqueeze(1))
        .mul_(d_entropy.neg().unsqueeze(1))
        .sub_(d_log_prob.unsqueeze(1))
        .mul_(p);
  } else {
    logits.exp_().mul_(d_log_prob.neg().unsqueeze(1));
  }
  logits.scatter_add_(1, targets.unsqueeze(1), d_log_prob.unsqueeze(1));
  return temperature == 1.0 ? logits : logits.div_(temperature);
}

// A chunk of hidden states through the final norm, with its way back.
struct Prepared {
  Tensor input;   // leaf
  Tensor output;  // what the matrix is applied to
  Prepared(Network& net, const Tensor& hidden) : input(hidden.detach()) {
    input.requires_grad_();
    const at::AutoGradMode recording(true);
    output = net.head_input(input);
  }
  [[nodiscard]] Tensor value() const { return output.detach(); }
  [[nodiscard]] Tensor backward(const Tensor& d) const {
    if (output.is_same(input)) return d;
    return torch::autograd::grad({output}, {input}, {d})[0];
  }
};

// Adds the matrix's gradient and returns that of its input.
Tensor matrix_backward(Linear& matrix, const Tensor& z, const Tensor& d) {
  if (matrix.d_weight.defined()) ops::add_outer(matrix.d_weight, d, z);
  return at::mm(d, matrix.weight);
}

}  // namespace

Tensor logits(Network& net, const Tensor& hidden) {
  require(net, spec::Head::kLanguageModel, "logits");
  const at::NoGradGuard no_grad;
  const HeadScope scope(net, Direction::kForward);
  return scaled_logits(net.head_input(hidden), net.lm_head.weight, 1.0);
}

LogProbs log_probs(Network& net, const Tensor& hidden, const Tensor& rows, const Tensor& targets,
                   const LogProbOptions& options) {
  require(net, spec::Head::kLanguageModel, "log-probs");
  const at::NoGradGuard no_grad;
  const HeadScope scope(net, Direction::kForward);
  const Chunks chunks(hidden, rows, options.chunk_elements, net.shape.vocab_size);
  chunks.check(targets, "targets");
  const auto make = [&] {
    return at::empty({chunks.count()},
                     hidden.options().dtype(ops::wide_type(hidden.scalar_type())));
  };
  LogProbs out{make(), options.entropy ? make() : Tensor(), make()};
  chunks.for_each([&](std::int64_t first, std::int64_t n) {
    Tensor z = net.head_input(chunks.hidden(first, n));
    Tensor f = scaled_logits(z, net.lm_head.weight, options.temperature);
    const RowValues values =
        reduce_logits(std::move(f), targets.narrow(0, first, n), options.entropy);
    out.log_probs.narrow(0, first, n).copy_(values.log_prob);
    out.log_sum.narrow(0, first, n).copy_(values.log_sum);
    if (options.entropy) out.entropy.narrow(0, first, n).copy_(values.entropy);
  });
  return out;
}

Tensor log_probs_backward(Network& net, const Tensor& hidden, const Tensor& rows,
                          const Tensor& targets, const LogProbs& forward, const Tensor& d_log_probs,
                          const Tensor& d_entropy, const LogProbOptions& options) {
  require(net, spec::Head::kLanguageModel, "log-probs");
  const at::NoGradGuard no_grad;
  const HeadScope scope(net, Direction::kBackward);
  const Chunks chunks(hidden, rows, options.chunk_elements, net.shape.vocab_size);
  chunks.check(targets, "targets");
  chunks.check(d_log_probs, "d_log_probs");
  chunks.check(forward.log_sum, "log_sum");
  if (d_entropy.defined()) {
    chunks.check(d_entropy, "d_entropy");
    if (!forward.entropy.defined())
      throw Error(ErrorCode::kInvalidArgument,
                  "The entropy's gradient needs a forward pass with entropy");
  }
  Tensor d_hidden = at::zeros_like(hidden);
  chunks.for_each([&](std::int64_t first, std::int64_t n) {
    const auto part = [&](const Tensor& t) {
      return t.defined() ? t.narrow(0, first, n).to(ops::wide_type(hidden.scalar_type()))
                         : Tensor();
    };
    const Prepared prepared(net, chunks.hidden(first, n));
    const Tensor z = prepared.value();
    const Tensor g =
        logits_gradient(scaled_logits(z, net.lm_head.weight, options.temperature),
                        targets.narrow(0, first, n), part(forward.log_sum), part(d_log_probs),
                        part(forward.entropy), part(d_entropy), options.temperature)
            .to(z.scalar_type());
    chunks.add(d_hidden, first, n, prepared.backward(matrix_backward(net.lm_head, z, g)));
  });
  return d_hidden;
}

Transformer::WithGrad cross_entropy(Network& net, const Tensor& hidden, const Tensor& rows,
                                    const Tensor& targets, const Tensor& weights,
                                    const LogProbOptions& options) {
  require(net, spec::Head::kLanguageModel, "log-probs");
  const at::NoGradGuard no_grad;
  const HeadScope scope(net, Direction::kBackward);
  const Chunks chunks(hidden, rows, options.chunk_elements, net.shape.vocab_size);
  chunks.check(targets, "targets");
  chunks.check(weights, "weights");
  const auto make = [&] {
    return at::empty({chunks.count()},
                     hidden.options().dtype(ops::wide_type(hidden.scalar_type())));
  };
  Transformer::WithGrad out{{make(), options.entropy ? make() : Tensor(), make()},
                            at::zeros_like(hidden)};
  chunks.for_each([&](std::int64_t first, std::int64_t n) {
    const Tensor target = targets.narrow(0, first, n);
    const Prepared prepared(net, chunks.hidden(first, n));
    const Tensor z = prepared.value();
    Tensor f = scaled_logits(z, net.lm_head.weight, options.temperature);
    const RowValues values = reduce_logits(f.clone(), target, options.entropy);
    out.values.log_probs.narrow(0, first, n).copy_(values.log_prob);
    out.values.log_sum.narrow(0, first, n).copy_(values.log_sum);
    if (options.entropy) out.values.entropy.narrow(0, first, n).copy_(values.entropy);
    const Tensor d_log_prob = weights.narrow(0, first, n).to(f.scalar_type()).neg();
    const Tensor g = logits_gradient(std::move(f), target, values.log_sum, d_log_prob, {}, {},
                                     options.temperature)
                         .to(z.scalar_type());
    chunks.add(out.d_hidden, first, n, prepared.backward(matrix_backward(net.lm_head, z, g)));
  });
  return out;
}

Tensor scores(Network& net, const Tensor& hidden, const Tensor& rows) {
  require(net, spec::Head::kScalar, "scores");
  const at::NoGradGuard no_grad;
  const HeadScope scope(net, Direction::kForward);
  const Chunks chunks(hidden, rows, kLogitsChunkElements, hidden.size(1));
  Tensor out =
      at::empty({chunks.count()}, hidden.options().dtype(ops::wide_type(hidden.scalar_type())));
  chunks.for_each([&](std::int64_t first, std::int64_t n) {
    const Tensor z = net.head_input(chunks.hidden(first, n));
    out.narrow(0, first, n).copy_(at::mm(z, net.score.weight.t()).squeeze(1));
  });
  return out;
}

Tensor scores_backward(Network& net, const Tensor& hidden, const Tensor& rows,
                       const Tensor& d_scores) {
  require(net, spec::Head::kScalar, "scores");
  const at::NoGradGuard no_grad;
  const HeadScope scope(net, Direction::kBackward);
  const Chunks chunks(hidden, rows, kLogitsChunkElements, hidden.size(1));
  chunks.check(d_scores, "d_scores");
  Tensor d_hidden = at::zeros_like(hidden);
  chunks.for_each([&](std::int64_t first, std::int64_t n) {
    const Prepared prepared(net, chunks.hidden(first, n));
    const Tensor d = d_scores.narrow(0, first, n).unsqueeze(1).to(hidden.scalar_type());
    chunks.add(d_hidden, first, n,
               prepared.backward(matrix_backward(net.score, prepared.value(), d)));
  });
  return d_hidden;
}

}  // namespace neap::model::head
