// Neap's attention of a decoding step on a card, with keys in pages.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "bridge/no_autograd.h"
#include "gpu/loaded_cuda.h"
#include "ops/aten_ops.h"
#include "step/model/page_table.h"

namespace neap::ops {
namespace {

using at::Tensor;

// Pages in random order of keys or values (R, K, tokens, D), and their table.
step::PagedKeys<Tensor> paged(const Tensor& keys, const Tensor& values) {
  const std::int64_t rows = keys.size(0), heads = keys.size(1), width = keys.size(3);
  const std::int64_t of_row = step::pages_of(keys.size(2)), page = step::kPageTokens;
  const Tensor numbers = at::randperm(rows * of_row, at::kLong).add(1).to(keys.device());
  const auto pages = [&](const Tensor& slots) {
    const Tensor whole = at::constant_pad_nd(slots, {0, 0, 0, of_row * page - slots.size(2)});
    Tensor pool = at::zeros({rows * of_row + 1, heads, page, width}, slots.options());
    return pool.index_copy_(0, numbers,
                            whole.view({rows, heads, of_row, page, width})
                                .transpose(1, 2)
                                .reshape({rows * of_row, heads, page, width}));
  };
  return {pages(keys), pages(values), numbers.view({rows, of_row}).mul(heads * page)};
}
// The tokens of pages, as slots.
Tensor slots_of(const Tensor& pool, const Tensor& table, std::int64_t tokens) {
  const std::int64_t heads = pool.size(1), width = pool.size(3);
  return pool.index({table.div(heads * step::kPageTokens, "floor")})
      .transpose(1, 2)
      .reshape({table.size(0), heads, -1, width})
      .narrow(2, 0, tokens);
}

Tensor random(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).to(at::Device(at::kCUDA, 0), at::kBFloat16);
}

TEST(OwnPages, GiveTheBitsOfSlots) {
  if (!has_cuda()) GTEST_SKIP() << "no card here";
  const bridge::NoAutograd no_autograd;
  at::manual_seed(7);
  step::OwnKernels kernels;
  kernels.on = true;
  const AtenOps own(at::Device(at::kCUDA, 0), {.own = kernels});
  struct Case {
    std::int64_t rows, heads, groups, width, tokens, window;
  };
  for (const Case& c :
       {Case{8, 14, 2, 64, 256, 0}, Case{3, 4, 1, 256, 1000, 300}, Case{5, 4, 4, 80, 300, 0},
        Case{64, 14, 2, 64, 700, 0}, Case{64, 12, 2, 128, 600, 60}, Case{64, 32, 8, 128, 300, 0},
        Case{64, 8, 8, 64, 700, 100}, Case{1, 32, 32, 128, 5000, 0}, Case{2, 3, 3, 24, 40, 0}}) {
    SCOPED_TRACE(::testing::Message() << c.rows << " " << c.heads << " " << c.width);
    const step::Heads<Tensor> heads{random({c.rows, c.heads, c.width}),
                                    random({c.rows, c.groups, c.width}),
                                    random({c.rows, c.groups, c.width})};
    const Tensor positions = at::randint(c.tokens, {c.rows}, at::kLong).to(at::kCUDA);
    const Tensor keys = random({c.rows, c.groups, c.tokens, c.width});
    const Tensor values = random({c.rows, c.groups, c.tokens, c.width});
    const step::PagedKeys<Tensor> pages = paged(keys, values);
    step::ScoreOptions options;
    options.scale = 1 / std::sqrt(static_cast<double>(c.width));
    options.window = c.window;
    const step::KeyLimit limit = step::key_limit(c.tokens, c.tokens, /*flash=*/true);
    const Tensor slots = own.append_and_attend_(keys, values, positions, heads, {}, limit, options);
    const Tensor found = own.append_and_attend_pages_(pages, positions, heads, {}, limit, options);
    EXPECT_TRUE(at::equal(found, slots));
    EXPECT_TRUE(at::equal(slots_of(pages.keys, pages.table, c.tokens), keys));
    EXPECT_TRUE(at::equal(slots_of(pages.values, pages.table, c.tokens), values));
  }
}

}  // namespace
}  // namespace neap::ops
