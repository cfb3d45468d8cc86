#include "ops/transformer.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "base/format.h"
#include "base/status.h"
#include "bridge/no_autograd.h"
#include "step/operations/bind.h"

namespace neap::ops {

using at::Tensor;

void check_flat(const Tensor& t, const spec::FlatUnit& unit, const char* what) {
  if (t.dim() != 1 || t.numel() < unit.elements || !t.is_contiguous() ||
      !at::isFloatingType(t.scalar_type())) {
    throw Error(
        ErrorCode::kInvalidArgument,
        format("The {} of unit \"{}\" must be one contiguous floating tensor of at least {} "
               "elements; it has {} in {} dimensions",
               what, unit.name, unit.elements, t.numel(), t.dim()));
  }
}

Tensor parameter_view(const Tensor& flat, const spec::Parameter& p) {
  return flat.narrow(0, p.offset, p.elements()).view(p.shape);
}
Tensor neighbours_view(const Tensor& flat, const spec::Neighbours& all) {
  std::vector<std::int64_t> strides(all.shape.size(), 1);
  for (std::size_t i = all.shape.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * all.shape[i];
  if (all.stride > 0) strides[0] = all.stride;
  return flat.as_strided(all.shape, strides, flat.storage_offset() + all.offset);
}

namespace {

void check_cache(const KvCache& cache, std::size_t layers, std::int64_t batch,
                 std::int64_t tokens) {
  if (cache.keys.size() == layers && cache.values.size() == layers && cache.rows() >= batch &&
      cache.max_tokens() >= tokens)
    return;
  throw Error(ErrorCode::kInvalidArgument,
              format("The KV cache holds {} layers of {} sequences of {} tokens; {} layers of {} "
                     "sequences of {} tokens are needed",
                     cache.keys.size(), cache.keys.empty() ? 0 : cache.rows(),
                     cache.keys.empty() ? 0 : cache.max_tokens(), layers, batch, tokens));
}

// Checks that there is one value per row that the head reads.
void check_rows(const Tensor& hidden, const Tensor& rows, const Tensor& per_row, const char* what) {
  const std::int64_t count = rows.defined() ? rows.size(0) : hidden.size(0);
  if (per_row.dim() != 1 || per_row.size(0) != count)
    throw Error(ErrorCode::kInvalidArgument, format("The head reads {} rows but {} has {} elements",
                                                    count, what, per_row.numel()));
}

void check_batch(const Tensor& tokens) {
  if (tokens.dim() != 2 || tokens.numel() == 0)
    throw Error(ErrorCode::kInvalidArgument,
                format("A batch is (B, T) tokens; it has {} dimensions and {} elements",
                       tokens.dim(), tokens.numel()));
}

}  // namespace

std::int64_t KvCache::elements(const spec::Architecture& a, std::int64_t batch,
                               std::int64_t max_tokens) {
  return a.blocks() * 2 * batch * a.num_key_value_heads * max_tokens * a.head_dim;
}

KvCache KvCache::over(const Tensor& flat, const spec::Architecture& a, std::int64_t batch,
                      std::int64_t max_tokens) {
  const std::int64_t needed = elements(a, batch, max_tokens);
  if (flat.dim() != 1 || flat.numel() < needed)
    throw Error(ErrorCode::kInvalidArgument,
                format("The KV cache needs {} elements in one dimension; {} were given", needed,
                       flat.numel()));
  const Tensor all =
      flat.narrow(0, 0, needed)
          .view({a.blocks(), 2, batch, a.num_key_value_heads, max_tokens, a.head_dim});
  KvCache cache;
  for (std::int64_t layer = 0; layer < a.blocks(); ++layer) {
    cache.keys.push_back(all.select(0, layer).select(0, 0));
    cache.values.push_back(all.select(0, layer).select(0, 1));
  }
  return cache;
}

AnyKvCache cache_over(const Tensor& flat, const Tensor& table, const spec::Architecture& a,
                      const step::CacheShape& shape) {
  if (!shape.paged()) return KvCache::over(flat, a, shape.rows, shape.row_tokens);
  KvCache pages = KvCache::over(flat, a, shape.pages + 1, step::kPageTokens);
  const std::int64_t entries = shape.rows * shape.row_pages();
  return PagedKvCache(std::move(pages.keys), std::move(pages.values),
                      table.narrow(0, 0, entries).view({shape.rows, -1}), shape);
}

const Tensor& Tape::hidden() const {
  if (!tape_.hidden.defined()) throw Error(ErrorCode::kInternal, "The tape has been walked back");
  return tape_.hidden;
}

void Tape::backward(Tensor d_hidden) {
  if (d_hidden.sizes() != hidden().sizes())
    throw Error(ErrorCode::kInvalidArgument,
                "d_hidden has another shape than the tape's hidden states");
  const bridge::NoAutograd no_autograd;
  step::backward(model_->ops_, model_->weights_, std::move(tape_), std::move(d_hidden));
  tape_ = {};
}

Transformer::Transformer(const spec::Architecture& architecture, spec::Head head, FlatTensors base,
                         std::optional<Lora> lora, std::optional<StreamedBase> streamed,
                         bridge::KernelChoice kernels, Peers peers)
    : ops_(streamed               ? streamed->device()
           : base.weights.empty() ? at::Device(at::kCPU)
                                  : base.weights[0].device(),
           kernels, peers) {
  weights_.architecture = architecture;
  weights_.head = head;
  weights_.blocks.resize(static_cast<std::size_t>(architecture.blocks()));
  bind(spec::flat_layout(architecture, head), base, "weights", parameters_);
  step::finish_binding(weights_);
  if (lora) bind_adapters(*lora);
  if (!streamed) return;
  bind_tables(*streamed);
  streamed_ = make_slot_blocks(weights_, *streamed);
  weights_.source = streamed_.get();
  weights_.table_on_host = streamed->table_on_host;
}

// Binds the tables to their buffers. Embedding rows are read where the embedding is stored.
void Transformer::bind_tables(const StreamedBase& streamed) {
  if (!streamed.table_memory.defined()) return;
  const step::TableUnits tables = streamed.slots->tables();
  const std::vector<spec::FlatUnit> units = spec::flat_layout(weights_.architecture, weights_.head);
  const auto gradient = [&](const spec::Parameter& p) {
    return streamed.table_gradients.defined() ? parameter_view(streamed.table_gradients, p)
                                              : Tensor();
  };
  if (tables.head) {
    const spec::FlatUnit& unit = table_unit(weights_, units, step::Table::kHead);
    check_flat(streamed.table_memory, unit, "slots of tables");
    if (weights_.architecture.tie_word_embeddings) {
      const spec::Parameter& p = unit.parameters.front();
      weights_.lm_head.weight = parameter_view(streamed.table_memory, p);
      weights_.lm_head.d_weight = gradient(p);
    } else {
      for (const spec::Parameter& p : unit.parameters)
        step::bind_parameter(weights_, unit, p, parameter_view(streamed.table_memory, p),
                             gradient(p));
    }
  }
  if (tables.embedding)
    weights_.d_token_table =
        gradient(table_unit(weights_, units, step::Table::kEmbedding).parameters.front());
}

void Transformer::bind_adapters(const Lora& lora) {
  const spec::Architecture& architecture = weights_.architecture;
  throw_if_error(spec::check_lora(architecture, lora.shape));
  bind(spec::lora_layout(architecture, weights_.head, lora.shape), lora.adapters, "adapters",
       adapters_);
  for (const spec::Linear& linear : spec::block_linears(architecture)) {
    for (const step::Block<Tensor>& block : weights_.blocks) {
      const std::int64_t i = block.index;
      const spec::LoraModule module =
          lora.shape.of(format("{}.{}", spec::block_prefix(architecture, i), linear.name));
      if (module.rank > 0)
        step::find_linear(weights_, i, linear.module)->lora_scale = lora.shape.scale(module);
    }
  }
}

void Transformer::bind(const std::vector<spec::FlatUnit>& units, const FlatTensors& flat,
                       const char* what, std::vector<NamedParameter>& named) {
  if (flat.weights.size() != units.size() ||
      (!flat.grads.empty() && flat.grads.size() != units.size())) {
    throw Error(ErrorCode::kInvalidArgument,
                format("The model has {} flat units of {}; {} tensors and {} gradients were given",
                       units.size(), what, flat.weights.size(), flat.grads.size()));
  }
  for (std::size_t u = 0; u < units.size(); ++u) {
    const Tensor grads = flat.grads.empty() ? Tensor() : flat.grads[u];
    check_flat(flat.weights[u], units[u], what);
    if (grads.defined()) check_flat(grads, units[u], "gradients");
    for (const spec::Parameter& p : units[u].parameters) {
      const auto view = [&](const Tensor& t) {
        return t.defined() ? parameter_view(t, p) : Tensor();
      };
      named.push_back({p.name, u, view(flat.weights[u]), view(grads)});
      step::bind_parameter(weights_, units[u], p, named.back().weight, named.back().grad);
    }
    step::bind_neighbours(weights_, units[u], [&](const spec::Neighbours& all) {
      return neighbours_view(flat.weights[u], all);
    });
  }
}

void Transformer::require(spec::Head head, const char* what) const {
  if (weights_.head != head)
    throw Error(ErrorCode::kInvalidArgument, format("This model's head gives no {}", what));
}

void Transformer::check_length(std::int64_t length) const {
  const std::int64_t limit = weights_.architecture.longest_sequence();
  if (length > limit)
    throw Error(ErrorCode::kInvalidArgument,
                format("A sequence of {} tokens is longer than the model's {}", length, limit));
}

Tensor Transformer::forward(const Tensor& tokens) {
  check_batch(tokens);
  check_length(tokens.size(1));
  const bridge::NoAutograd no_autograd;
  return step::forward(ops_, weights_, step::of_one_length(tokens.reshape(-1), tokens.size(1)));
}

Tape Transformer::forward_train(const Tensor& tokens, const TrainOptions& options) {
  check_batch(tokens);
  check_length(tokens.size(1));
  const bridge::NoAutograd no_autograd;
  return {*this, step::forward_train(ops_, weights_,
                                     step::of_one_length(tokens.reshape(-1), tokens.size(1)),
                                     options.checkpointing)};
}

step::Rotations<Tensor> Transformer::rotations_of(const KvCache& cache) const {
  return step::make_rotations(ops_, weights_.architecture, cache.max_tokens());
}

Tensor Transformer::prefill(const Tensor& tokens, const Tensor& lengths, const KvCache& cache,
                            const Tensor& rows) {
  const bridge::NoAutograd no_autograd;
  check_batch(tokens);
  check_length(tokens.size(1));
  check_cache(cache, weights_.blocks.size(), tokens.size(0), tokens.size(1));
  const Tensor first = rows.defined() ? rows : ops_.iota(tokens.size(0));
  return step::prefill(ops_, weights_, rotations_of(cache), tokens.contiguous(), lengths,
                       cache.prompts(ops_, first.view({1, -1}), {{}, tokens.size(1)}), cache);
}

Tensor Transformer::decode(const Tensor& tokens, const Tensor& positions, const KvCache& cache,
                           std::int64_t key_limit) {
  const bridge::NoAutograd no_autograd;
  check_cache(cache, weights_.blocks.size(), tokens.size(0), key_limit);
  return step::decode(ops_, weights_, rotations_of(cache), tokens, positions, cache, key_limit);
}

Tensor Transformer::logits(const Tensor& hidden) {
  require(spec::Head::kLanguageModel, "logits");
  const bridge::NoAutograd no_autograd;
  return step::logits(ops_, weights_, hidden);
}

LogProbs Transformer::log_probs(const Tensor& hidden, const Tensor& rows, const Tensor& targets,
                                const LogProbOptions& options) {
  require(spec::Head::kLanguageModel, "log-probabilities");
  check_rows(hidden, rows, targets, "targets");
  const bridge::NoAutograd no_autograd;
  return step::log_probs(ops_, weights_, hidden, rows, targets, options);
}

Tensor Transformer::log_probs_backward(const Tensor& hidden, const Tensor& rows,
                                       const Tensor& targets, const LogProbs& forward,
                                       const Tensor& d_log_probs, const Tensor& d_entropy,
                                       const LogProbOptions& options) {
  require(spec::Head::kLanguageModel, "log-probabilities");
  check_rows(hidden, rows, targets, "targets");
  check_rows(hidden, rows, d_log_probs, "d_log_probs");
  check_rows(hidden, rows, forward.log_sum, "log_sum");
  if (d_entropy.defined()) {
    check_rows(hidden, rows, d_entropy, "d_entropy");
    if (!forward.entropy.defined())
      throw Error(ErrorCode::kInvalidArgument,
                  "The entropy's gradient needs a forward pass with entropy");
  }
  const bridge::NoAutograd no_autograd;
  return step::log_probs_backward(ops_, weights_, hidden, rows, targets, forward, d_log_probs,
                                  d_entropy, options);
}

Transformer::WithGrad Transformer::cross_entropy(const Tensor& hidden, const Tensor& rows,
                                                 const Tensor& targets, const Tensor& weights,
                                                 const LogProbOptions& options) {
  require(spec::Head::kLanguageModel, "log-probabilities");
  check_rows(hidden, rows, targets, "targets");
  check_rows(hidden, rows, weights, "weights");
  const bridge::NoAutograd no_autograd;
  return step::cross_entropy(ops_, weights_, hidden, rows, targets, weights, options);
}

Tensor Transformer::scores(const Tensor& hidden, const Tensor& rows) {
  require(spec::Head::kScalar, "scores");
  const bridge::NoAutograd no_autograd;
  return step::scores(ops_, weights_, hidden, rows);
}

Tensor Transformer::scores_backward(const Tensor& hidden, const Tensor& rows,
                                    const Tensor& d_scores) {
  require(spec::Head::kScalar, "scores");
  check_rows(hidden, rows, d_scores, "d_scores");
  const bridge::NoAutograd no_autograd;
  return step::scores_backward(ops_, weights_, hidden, rows, d_scores);
}

}  // namespace neap::ops
