#include "kernels/tuned_products.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>

#include "base/format.h"
#include "kernels/per_card.h"

namespace neap::kernels {
namespace {

namespace cuda = device::cuda;
using namespace cublaslt;

constexpr int kMostOffers = 16;
constexpr std::size_t kTimesOfChoice = 6;
constexpr float kGain = 0.99F;  // Times have noise, so the library's first choice has an advantage.

Status checked(int status, const char* function) {
  if (status == 0) return {};
  return {ErrorCode::kInternal, format("{}: status {}", function, status)};
}

template <class T>
Status set(const Api& api, Object product, int attribute, T value) {
  return checked(api.product_set(product, attribute, &value, sizeof value),
                 "cublasLtMatmulDescSetAttribute");
}

Result<std::unique_ptr<TunedProducts>> open_products(int ordinal) {
  NEAP_TRY_ASSIGN(const Api* const api, load_cublaslt());
  NEAP_TRY_ASSIGN(const cuda::Card card, cuda::open_card(ordinal));
  const cuda::ContextScope scope(card);
  NEAP_TRY(scope.status());
  Handle handle = nullptr;
  NEAP_TRY(checked(api->create(&handle), "cublasLtCreate"));
  return std::make_unique<TunedProducts>(*api, card, handle);
}

// Whether an algorithm adds along the whole depth on tensor cores. Some multiply few rows on other
// cores, in another order (bench/results/engine-row-bits-h100.jsonl).
bool adds_in_order(const Api& api, const Algorithm& algorithm) {
  constexpr std::array kOnOtherCores{11, 13, 14, 16};
  const auto attribute = [&](int which) {
    int value = -1;
    std::size_t written = 0;
    return api.algorithm_get(&algorithm, which, &value, sizeof value, &written) == 0 ? value : -1;
  };
  const int number = attribute(kAlgorithm), splits = attribute(kSplits);
  return number >= 0 && (splits == 0 || splits == 1) &&
         std::find(kOnOtherCores.begin(), kOnOtherCores.end(), number) == kOnOtherCores.end();
}

float median(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Result<TunedProducts*> TunedProducts::of(int ordinal) {
  return per_card<TunedProducts>(ordinal, open_products);
}

Result<bool> TunedProducts::multiply(const ProductShape& shape, const Operands& by,
                                     cuda::Stream stream) {
  const std::lock_guard lock(mutex_);
  const cuda::ContextScope scope(card_);
  NEAP_TRY(scope.status());
  NEAP_TRY_ASSIGN(Product* const product, find(shape));
  if (product->choices.empty()) return false;
  bool timed = !product->tuned;
  if (timed) {
    NEAP_TRY_ASSIGN(const bool captured, is_captured(stream));
    timed = !captured;
  }
  NEAP_TRY(timed ? run_timed(shape, *product, by, stream) : run(shape, *product, 0, by, stream));
  return true;
}

Result<TunedProducts::Product*> TunedProducts::find(const ProductShape& shape) {
  if (const auto found = products_.find(shape); found != products_.end()) return &found->second;
  NEAP_TRY_ASSIGN(Product product, describe(shape));
  NEAP_TRY(offer(shape, product));
  return &products_.emplace(shape, std::move(product)).first->second;
}

Result<TunedProducts::Product> TunedProducts::describe(const ProductShape& shape) const {
  Product product;
  NEAP_TRY(checked(api_.product_create(&product.description, kSumsInFloat32, kFloat32),
                   "cublasLtMatmulDescCreate"));
  if (shape.bias) NEAP_TRY(set(api_, product.description, kEpilogue, kAddsBias));
  const auto matrix = [&](Object& made, int type, std::int64_t rows, std::int64_t columns,
                          std::int64_t stride) {
    return checked(api_.matrix_create(&made, type, static_cast<std::uint64_t>(columns),
                                      static_cast<std::uint64_t>(rows), stride),
                   "cublasLtMatrixLayoutCreate");
  };
  const auto factor = [&](Object& made, const Factor& f, std::int64_t rows, std::int64_t columns,
                          int attribute) -> Status {
    NEAP_TRY(set(api_, product.description, attribute, f.transposed ? 1 : 0));
    if (f.transposed) std::swap(rows, columns);
    return matrix(made, kBFloat16, rows, columns, f.stride);
  };
  NEAP_TRY(factor(product.first, shape.b, shape.depth, shape.columns, kTransposeA));
  NEAP_TRY(factor(product.second, shape.a, shape.rows, shape.depth, kTransposeB));
  NEAP_TRY(matrix(product.out, shape.float32 ? kFloat32 : kBFloat16, shape.rows, shape.columns,
                  shape.out_stride));
  return product;
}

Status TunedProducts::offer(const ProductShape& shape, Product& product) const {
  Object preference = nullptr;
  NEAP_TRY(checked(api_.preference_create(&preference), "cublasLtMatmulPreferenceCreate"));
  const auto prefer = [&](int attribute, std::uint32_t value) {
    return checked(api_.preference_set(preference, attribute, &value, sizeof value),
                   "cublasLtMatmulPreferenceSetAttribute");
  };
  Status status = prefer(kReductions, 0);
  for (int matrix = 0; matrix < 4 && status.ok(); ++matrix)
    status = prefer(kFirstOfAlignments + matrix, shape.alignment);
  std::array<Offer, kMostOffers> offers{};
  int count = 0;
  // Another status says that there are none.
  if (status.ok() &&
      api_.offers(handle_, product.description, product.first, product.second, product.out,
                  product.out, preference, kMostOffers, offers.data(), &count) != 0)
    count = 0;
  (void)api_.preference_destroy(preference);
  NEAP_TRY(std::move(status));
  for (int i = 0; i < count; ++i) {
    const Offer& o = offers[static_cast<std::size_t>(i)];
    if (o.status == 0 && o.workspace_bytes == 0 && adds_in_order(api_, o.algorithm))
      product.choices.push_back({o.algorithm});
  }
  return {};
}

Status TunedProducts::run(const ProductShape& shape, const Product& product, std::size_t choice,
                          const Operands& by, cuda::Stream stream) const {
  const float beta = shape.adds ? 1 : 0;
  if (shape.bias) NEAP_TRY(set(api_, product.description, kBias, by.bias));
  return checked(api_.multiply(handle_, product.description, &by.alpha, by.b, product.first, by.a,
                               product.second, &beta, by.out, product.out, by.out, product.out,
                               &product.choices[choice].algorithm, nullptr, 0, stream),
                 "cublasLtMatmul");
}

Status TunedProducts::run_timed(const ProductShape& shape, Product& product, const Operands& by,
                                cuda::Stream stream) const {
  NEAP_TRY(read_times(product));
  if (product.calls == kTimesOfChoice * product.choices.size())
    return run(shape, product, 0, by, stream);
  const cuda::Driver& driver = *card_.driver;
  const auto mark = [&](cuda::Event& event) -> Status {
    NEAP_TRY(to_status(driver, driver.event_create(&event, 0), "creating an event"));
    return to_status(driver, driver.event_record(event, stream), "recording an event");
  };
  Timed timed{product.calls++ % product.choices.size(), nullptr, nullptr};
  NEAP_TRY(mark(timed.begin));
  NEAP_TRY(run(shape, product, timed.choice, by, stream));
  NEAP_TRY(mark(timed.end));
  product.running.push_back(timed);
  return {};
}

Status TunedProducts::read_times(Product& product) const {
  const cuda::Driver& driver = *card_.driver;
  while (!product.running.empty()) {
    const Timed& timed = product.running.front();
    float milliseconds = 0;
    const cuda::Result32 code = driver.event_elapsed(&milliseconds, timed.begin, timed.end);
    if (code == cuda::kNotReady) return {};
    NEAP_TRY(to_status(driver, code, "timing a product"));
    product.choices[timed.choice].milliseconds.push_back(milliseconds);
    for (const cuda::Event event : {timed.begin, timed.end}) (void)driver.event_destroy(event);
    product.running.pop_front();
  }
  if (product.calls < kTimesOfChoice * product.choices.size()) return {};
  const auto time = [&](const Choice& choice) {
    return median(choice.milliseconds) * (&choice == product.choices.data() ? kGain : 1);
  };
  const auto best =
      std::min_element(product.choices.begin(), product.choices.end(),
                       [&](const Choice& a, const Choice& b) { return time(a) < time(b); });
  std::iter_swap(product.choices.begin(), best);
  product.tuned = true;
  return {};
}

Result<bool> TunedProducts::is_captured(cuda::Stream stream) const {
  int state = 0;
  NEAP_TRY(to_status(*card_.driver, card_.driver->stream_is_capturing(stream, &state),
                     "asking whether a stream is captured"));
  return state != 0;
}

}  // namespace neap::kernels
