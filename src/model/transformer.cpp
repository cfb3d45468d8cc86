#include "model/transformer.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>

#include "base/format.h"
#include "base/status.h"
#include "model/head.h"
#include "model/network.h"
#include "torch/attention.h"

namespace neap::model {

using at::Tensor;

Batch Batch::padded(const Tensor& tokens) {
  if (tokens.dim() != 2)
    throw Error(ErrorCode::kInvalidArgument,
                format("A padded batch is (B, T); it has {} dimensions", tokens.dim()));
  return {tokens.reshape(-1),
          std::vector<std::int64_t>(static_cast<std::size_t>(tokens.size(0)), tokens.size(1))};
}

Batch Batch::packed(Tensor tokens, std::vector<std::int64_t> lengths) {
  const auto sum = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  if (tokens.dim() != 1 || tokens.size(0) != sum)
    throw Error(ErrorCode::kInvalidArgument,
                format("The packed sequences have {} tokens by their lengths, {} by their tensor",
                       sum, tokens.numel()));
  return {std::move(tokens), std::move(lengths)};
}

struct Transformer::Impl {
  Network net;
};

namespace {

// Block inputs as they are.
class PlainStore final : public BlockInputStore {
 public:
  void put(std::size_t block, Tensor input) override {
    inputs_.resize(std::max(inputs_.size(), block + 1));
    inputs_[block] = std::move(input);
  }
  Tensor take(std::size_t block) override { return std::move(inputs_.at(block)); }

 private:
  std::vector<Tensor> inputs_;
};

class WalkTape final : public Tape {
 public:
  WalkTape(Network& net, const Batch& batch, const TrainOptions& options)
      : net_(net),
        tokens_(batch.tokens),
        sequences_(net.sequences(batch.lengths)),
        recompute_(options.recompute),
        store_(options.store ? options.store : &plain_) {
    const at::NoGradGuard no_grad;
    Tensor x = net_.embed(tokens_, sequences_.positions);
    for (std::size_t i = 0; i < net_.blocks.size(); ++i) {
      net_.before(Direction::kForward, i + 1);
      if (recompute_) {
        store_->put(i, x);
        x = net_.run_block(i, std::move(x), sequences_, Network::Mode::kKeepInput);
      } else {
        graphs_.push_back(record(i, std::move(x)));
        x = graphs_.back().output.detach();
      }
      net_.after(Direction::kForward, i + 1);
    }
    hidden_ = std::move(x);
  }

  const Tensor& hidden() const override {
    if (!hidden_.defined()) throw Error(ErrorCode::kInternal, "The tape has been walked back");
    return hidden_;
  }

  void backward(Tensor d) override {
    if (d.sizes() != hidden().sizes())
      throw Error(ErrorCode::kInvalidArgument,
                  "d_hidden has another shape than the tape's hidden states");
    const at::NoGradGuard no_grad;
    hidden_.reset();
    for (std::size_t i = net_.blocks.size(); i-- > 0;) {
      net_.before(Direction::kBackward, i + 1);
      Graph graph;
      if (recompute_) {
        graph = record(i, store_->take(i));
      } else {
        graph = std::move(graphs_.back());
        graphs_.pop_back();
      }
      const bridge::AttentionBackward scope;
      auto gradients =
          torch::autograd::grad({graph.output}, {graph.input}, {d}, /*retain_graph=*/false);
      d = std::move(gradients[0]);
      net_.after(Direction::kBackward, i + 1);
    }
    net_.embed_backward(tokens_, sequences_.positions, d);
  }

 private:
  struct Graph {
    Tensor input, output;
  };
  Graph record(std::size_t block, Tensor x) {
    Graph graph;
    graph.input = x.detach().requires_grad_();
    graph.output = net_.run_block(block, graph.input, sequences_, Network::Mode::kGraph);
    return graph;
  }

  Network& net_;
  Tensor tokens_;
  Sequences sequences_;
  bool recompute_;
  PlainStore plain_;
  BlockInputStore* store_;
  std::vector<Graph> graphs_;
  Tensor hidden_;
};

void check_cache(const KvCache& cache, const Network& net, std::int64_t batch,
                 std::int64_t tokens) {
  if (cache.keys.size() != net.blocks.size() || cache.values.size() != net.blocks.size() ||
      cache.batch() < batch || cache.max_tokens() < tokens) {
    throw Error(
        ErrorCode::kInvalidArgument,
        format("The KV cache holds {} layers of {} sequences of {} tokens; {} layers of {} "
               "sequences of {} tokens are needed",
               cache.keys.size(), cache.keys.empty() ? 0 : cache.batch(),
               cache.keys.empty() ? 0 : cache.max_tokens(), net.blocks.size(), batch, tokens));
  }
}

void apply_adapters(Network& net, double sign) {
  const at::NoGradGuard no_grad;
  net.for_each_linear([&](Linear& l) {
    if (!l.lora_a.defined()) return;
    // Wide, a matrix at a time: the sum is rounded once, not the product first.
    const at::ScalarType wide = ops::wide_type(l.weight.scalar_type());
    const Tensor delta =
        at::mm(l.lora_b.to(wide), l.lora_a.to(wide)).mul_(sign * l.lora_scale);  // (out, in)
    l.weight.copy_(l.weight.to(wide).add(l.input_major ? delta.t() : delta));
    l.lora_merged = sign > 0;
  });
  net.merged = sign > 0;
}

}  // namespace

std::int64_t KvCache::elements(const spec::ModelShape& shape, std::int64_t batch,
                               std::int64_t max_tokens) {
  return shape.num_hidden_layers * 2 * batch * shape.num_key_value_heads * max_tokens *
         shape.head_dim;
}

KvCache KvCache::over(const Tensor& flat, const spec::ModelShape& shape, std::int64_t batch,
                      std::int64_t max_tokens) {
  const std::int64_t needed = elements(shape, batch, max_tokens);
  if (flat.dim() != 1 || flat.numel() < needed)
    throw Error(ErrorCode::kInvalidArgument,
                format("The KV cache needs {} elements in one dimension; {} were given", needed,
                       flat.numel()));
  const Tensor all = flat.narrow(0, 0, needed)
                         .view({shape.num_hidden_layers, 2, batch, shape.num_key_value_heads,
                                max_tokens, shape.head_dim});
  KvCache cache;
  for (std::int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
    cache.keys.push_back(all.select(0, layer).select(0, 0));
    cache.values.push_back(all.select(0, layer).select(0, 1));
  }
  return cache;
}

KvCache KvCache::first(std::int64_t n) const {
  KvCache part;
  for (const auto& k : keys) part.keys.push_back(k.narrow(0, 0, n));
  for (const auto& v : values) part.values.push_back(v.narrow(0, 0, n));
  return part;
}

Transformer::Transformer(const spec::ModelShape& shape, spec::Head head, FlatTensors base,
                         std::optional<Lora> lora)
    : impl_(new Impl{Network(shape, head, std::move(base), std::move(lora))}) {}
Transformer::~Transformer() = default;
Transformer::Transformer(Transformer&&) noexcept = default;
Transformer& Transformer::operator=(Transformer&&) noexcept = default;

const spec::ModelShape& Transformer::shape() const {
  return impl_->net.shape;
}
spec::Head Transformer::head() const {
  return impl_->net.head;
}
std::size_t Transformer::units() const {
  return impl_->net.layout.size();
}
at::Device Transformer::device() const {
  return impl_->net.token_table.device();
}
at::ScalarType Transformer::dtype() const {
  return impl_->net.token_table.scalar_type();
}
const std::vector<NamedParameter>& Transformer::parameters() const {
  return impl_->net.parameters;
}
const std::vector<NamedParameter>& Transformer::adapters() const {
  return impl_->net.adapters;
}
void Transformer::set_observer(WalkObserver* observer) {
  impl_->net.observer = observer;
}
void Transformer::bind_unit(std::size_t unit, const Tensor& weights, const Tensor& grads) {
  impl_->net.bind_unit(unit, weights, grads);
}

Tensor Transformer::forward(const Batch& batch) {
  const at::NoGradGuard no_grad;
  Network& net = impl_->net;
  const Sequences sequences = net.sequences(batch.lengths);
  Tensor x = net.embed(batch.tokens, sequences.positions);
  for (std::size_t i = 0; i < net.blocks.size(); ++i) {
    net.before(Direction::kForward, i + 1);
    x = net.run_block(i, std::move(x), sequences, Network::Mode::kConsume);
    net.after(Direction::kForward, i + 1);
  }
  return x;
}

std::unique_ptr<Tape> Transformer::forward_train(const Batch& batch, const TrainOptions& options) {
  if (impl_->net.merged)
    throw Error(ErrorCode::kInvalidArgument, "The adapters are merged; unmerge them to train");
  return std::make_unique<WalkTape>(impl_->net, batch, options);
}

Tensor Transformer::prefill(const Tensor& tokens, const Tensor& lengths, KvCache& cache,
                            const Tensor& slots) {
  const at::NoGradGuard no_grad;
  Network& net = impl_->net;
  const bridge::GenerationAttention scope;
  const Batch batch = Batch::padded(tokens);
  const std::int64_t b = tokens.size(0);
  const std::int64_t t = tokens.size(1);
  check_cache(cache, net, b, t);
  const Sequences sequences = net.sequences(batch.lengths);
  Tensor x = net.embed(batch.tokens, sequences.positions);
  for (std::size_t i = 0; i < net.blocks.size(); ++i) {
    const auto write = [&](Tensor& past, const Tensor& rows) {
      const Tensor by_head = rows.view({b, t, rows.size(1), rows.size(2)}).transpose(1, 2);
      if (slots.defined()) {
        past.narrow(2, 0, t).index_copy_(0, slots, by_head);
      } else {
        past.narrow(0, 0, b).narrow(2, 0, t).copy_(by_head);
      }
    };
    net.before(Direction::kForward, i + 1);
    x = net.run_block(i, std::move(x), sequences, Network::Mode::kConsume,
                      [&](const Tensor& keys, const Tensor& values) {
                        write(cache.keys[i], keys);
                        write(cache.values[i], values);
                      });
    net.after(Direction::kForward, i + 1);
  }
  const Tensor last = at::arange(b, lengths.options()).mul_(t).add_(lengths).sub_(1);
  return x.index_select(0, last);
}

Tensor Transformer::decode(const Tensor& tokens, const Tensor& positions, KvCache& cache,
                           std::int64_t key_limit) {
  const at::NoGradGuard no_grad;
  Network& net = impl_->net;
  const bridge::GenerationAttention scope;
  check_cache(cache, net, tokens.size(0), key_limit);
  const KvCache rows = cache.batch() == tokens.size(0) ? cache : cache.first(tokens.size(0));
  ops::RopeTable rope;
  if (net.has_rope()) {
    rope = ops::rope_table(positions, net.shape.head_dim, net.shape.rope_theta, dtype());
    rope = {rope.cos.unsqueeze(1), rope.sin.unsqueeze(1)};
  }
  const Tensor mask = at::arange(key_limit, positions.options())
                          .le(positions.unsqueeze(1))
                          .view({-1, 1, 1, key_limit});
  Tensor x = net.embed(tokens, positions);
  for (std::size_t i = 0; i < net.blocks.size(); ++i) {
    Tensor keys = rows.keys[i];
    Tensor values = rows.values[i];
    net.before(Direction::kForward, i + 1);
    x = net.decode_block(i, std::move(x), rope, positions, mask, keys, values);
    net.after(Direction::kForward, i + 1);
  }
  return x;
}

Tensor Transformer::logits(const Tensor& hidden) {
  return head::logits(impl_->net, hidden);
}
LogProbs Transformer::log_probs(const Tensor& hidden, const Tensor& rows, const Tensor& targets,
                                const LogProbOptions& options) {
  return head::log_probs(impl_->net, hidden, rows, targets, options);
}
Tensor Transformer::log_probs_backward(const Tensor& hidden, const Tensor& rows,
                                       const Tensor& targets, const LogProbs& forward,
                                       const Tensor& d_log_probs, const Tensor& d_entropy,
                                       const LogProbOptions& options) {
  return head::log_probs_backward(impl_->net, hidden, rows, targets, forward, d_log_probs,
                                  d_entropy, options);
}
Transformer::WithGrad Transformer::cross_entropy(const Tensor& hidden, const Tensor& rows,
                                                 const Tensor& targets, const Tensor& weights,
                                                 const LogProbOptions& options) {
  return head::cross_entropy(impl_->net, hidden, rows, targets, weights, options);
}
Tensor Transformer::scores(const Tensor& hidden, const Tensor& rows) {
  return head::scores(impl_->net, hidden, rows);
}
Tensor Transformer::scores_backward(const Tensor& hidden, const Tensor& rows,
                                    const Tensor& d_scores) {
  return head::scores_backward(impl_->net, hidden, rows, d_scores);
}

void Transformer::merge_adapters() {
  Network& net = impl_->net;
  if (net.merged) throw Error(ErrorCode::kInvalidArgument, "The adapters are merged already");
  apply_adapters(net, 1);
}
void Transformer::unmerge_adapters() {
  Network& net = impl_->net;
  if (!net.merged) throw Error(ErrorCode::kInvalidArgument, "The adapters are not merged");
  apply_adapters(net, -1);
}
bool Transformer::merged() const {
  return impl_->net.merged;
}

}  // namespace neap::model
