#include "cli/text_model.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/format.h"
#include "base/status.h"
#include "bridge/torch_cuda_memory.h"
#include "bridge/torch_dtypes.h"
#include "plan/counting/graph_sizes.h"
#include "weights/model_reader.h"

namespace neap::cli {
namespace {

template <class Make>
auto on_device(const std::string& what, Bytes bytes, const Make& make) {
  try {
    return make();
  } catch (const c10::OutOfMemoryError&) {
    throw Error(ErrorCode::kOutOfDeviceMemory,
                format("{} of {} do not fit into the device's memory", what, bytes));
  }
}

}  // namespace

TextModel::TextModel(spec::ModelFiles files)
    : files_(std::move(files)),
      shape_(value_or_throw(spec::Architecture::from_folder(files_.base))),
      config_(value_or_throw(spec::GenerationConfig::from_folder(files_.base))),
      tokenizer_(text::Tokenizer::from_folder(files_.tokenizer())),
      text_(text::text_tokens(files_.base, shape_, tokenizer_)) {}

void TextModel::load(const spec::DeviceConfig& config) {
  spec::Job job;
  job.device = config;
  const plan::DeviceChoice choice = bridge::choose_run_device(config);
  target_ = choice.target;
  context_.emplace(job, choice);
  const bridge::DeviceContext::Entered entered(*context_);
  if (target_->cuda) bridge::make_cublas_workspaces(context_->torch().index());
  options_ = at::TensorOptions().device(context_->torch()).dtype(context_->dtype());
  const std::vector<spec::FlatUnit> units = spec::flat_layout(shape_, spec::Head::kLanguageModel);
  std::int64_t elements = 0;
  for (const spec::FlatUnit& unit : units) elements += unit.elements;
  const std::uint64_t width = c10::elementSize(context_->dtype());
  std::vector<at::Tensor> flat;
  on_device("Weights", Bytes(static_cast<std::uint64_t>(elements) * width), [&] {
    for (const spec::FlatUnit& unit : units) flat.push_back(at::zeros({unit.elements}, options_));
  });
  weights::ModelReader(files_, shape_, spec::Head::kLanguageModel).read(0, flat);
  transformer_.emplace(shape_, spec::Head::kLanguageModel, ops::FlatTensors{flat, {}}, std::nullopt,
                       std::nullopt, context_->kernels());
}

void TextModel::check_pages(const step::CacheShape& shape, std::int64_t total_tokens) const {
  constexpr std::int64_t kPage = step::kPageTokens;
  const bool is_page = total_tokens == 0 || total_tokens >= kPage;
  if (!is_page || (shape.paged() && shape.pages < shape.row_pages()))
    throw Error(ErrorCode::kInvalidArgument,
                format("--max-total-tokens {} holds {} tokens in whole pages of {}, less than a "
                       "text of {} tokens with its prompt; set at least {}",
                       total_tokens, total_tokens / kPage * kPage, kPage, shape.row_tokens,
                       (shape.row_tokens + kPage - 1) / kPage * kPage));
  if (!shape.paged()) return;
  const std::string_view reason = step::no_pages_reason(
      shape_, target_->cuda, bridge::to_step(context_->dtype()), context_->kernels().own);
  if (!reason.empty())
    throw Error(ErrorCode::kUnsupported, format("--max-total-tokens: {}", reason));
}

ops::AnyKvCache& TextModel::cache(const step::CacheShape& shape) {
  const std::int64_t elements = ops::KvCache::elements(shape_, 1, shape.tokens());
  cache_ = {};
  if (!cells_.defined() || cells_.numel() < elements) {
    cells_ = at::Tensor();
    const Bytes bytes(static_cast<std::uint64_t>(elements) * options_.dtype().itemsize());
    const std::string what = format(
        "Keys and values of {} texts with {} tokens (--batch-size, --max-new-tokens, "
        "--max-total-tokens)",
        shape.rows, shape.row_tokens);
    cells_ = on_device(what, bytes, [&] { return at::zeros({elements}, options_); });
  }
  at::Tensor table;
  if (shape.paged()) table = at::zeros({shape.rows * shape.row_pages()}, options_.dtype(at::kLong));
  cache_ = ops::cache_over(cells_, table, shape_, shape);
  return cache_;
}

at::Tensor TextModel::graphs(const step::CacheShape& shape, const step::SamplingOptions& sampling) {
  if (!target_->cuda) return {};
  plan::ModelRole role;
  role.shape = shape_;
  role.head = spec::Head::kLanguageModel;
  step::KernelProfile profile;
  profile.cuda = true;
  profile.own = context_->kernels().own;
  profile.device.multiprocessors = target_->multiprocessors;
  const Bytes bytes =
      plan::graph_scratch(role, bridge::to_step(context_->dtype()), shape, sampling, profile);
  if (bytes.is_zero()) return {};
  const auto size = static_cast<std::int64_t>(bytes.count());
  if (!scratch_.defined() || scratch_.numel() < size) {
    scratch_ = at::Tensor();
    scratch_ = on_device("The tensors of a decoding step", bytes,
                         [&] { return at::empty({size}, options_.dtype(at::kByte)); });
  }
  return scratch_;
}

std::vector<rollout::Response> TextModel::generate(const std::vector<rollout::Prompt>& prompts,
                                                   const Sizes& sizes,
                                                   rollout::GenerateOptions options) {
  const bridge::DeviceContext::Entered entered(*context_);
  options.eos_token_ids = text_.ends;
  options.pad_token_id = text_.pad;
  options.prompt_width = 0;
  for (const rollout::Prompt& prompt : prompts)
    options.prompt_width = std::max(options.prompt_width, std::ssize(prompt.tokens));
  const std::int64_t rows = std::min(sizes.batch, std::ssize(prompts));
  const std::int64_t tokens = options.prompt_width + options.max_new_tokens;
  const step::CacheShape shape = step::cache_shape(rows, tokens, sizes.total_tokens);
  check_pages(shape, sizes.total_tokens);
  options.prefill = spec::prefill_shape(rows, options.prompt_width, sizes.prefill_tokens);
  options.graphs = graphs(shape, options.sampling);
  return rollout::generate(*transformer_, cache(shape), prompts, options);
}

}  // namespace neap::cli
