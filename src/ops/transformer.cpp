#include "ops/transformer.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "base/format.h"
#include "base/status.h"
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

}  // namespace neap::ops
