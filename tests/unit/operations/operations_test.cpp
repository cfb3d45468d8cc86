// Each operation on libtorch against the one that only counts.
#include <gtest/gtest.h>

#include "conformance.h"
#include "operations_fixture.h"
#include "step/model/block_parts.h"
#include "step/operations/linear.h"

namespace neap {
namespace {

using step::Dtype;

TEST_P(Operations, Products) {
  const Dtype d = GetParam();
  same("product", [d](auto& ops, auto in) {
    return [&ops, a = in({64, 48}, d), b = in({80, 48}, d)] {
      (void)ops.product(a, ops.transpose(b));
    };
  });
  same("product_plus", [d](auto& ops, auto in) {
    return [&ops, bias = in({80}, d), a = in({64, 48}, d), b = in({80, 48}, d)] {
      (void)ops.product_plus(bias, a, ops.transpose(b));
    };
  });
  same("add_product_", [d](auto& ops, auto in) {
    return [&ops, c = in({48, 80}, d), a = in({64, 48}, d), b = in({64, 80}, d)] {
      ops.add_product_(c, ops.transpose(a), b, 0.5);
    };
  });
  same("the gradient of a matrix", [d](auto& ops, auto in) {
    return [&ops, c = in({48, 80}, step::wide(d)), a = in({64, 48}, d), b = in({64, 80}, d)] {
      step::add_outer(ops, c, a, b);
    };
  });
  same("batch_product", [d](auto& ops, auto in) {
    return [&ops, a = in({6, 20, 16}, d), b = in({6, 30, 16}, d)] {
      (void)ops.batch_product(a, ops.transpose(b));
      (void)ops.batch_product(ops.transpose(a), a);
    };
  });
}

TEST_P(Operations, Fp8) {
  const Dtype d = GetParam();
  if (testing::test_device().is_cuda() && d != Dtype::kBfloat16) GTEST_SKIP() << "of bfloat16";
  // Rows that are no multiple of what the transposed copies have.
  same("copies and products", [d](auto& ops, auto in) {
    using T = decltype(in({1}, d));
    return [&ops, d, x = in({37, 48}, d), w = in({64, 48}, d), dy = in({37, 64}, d),
            bias = in({64}, d)] {
      step::Fp8Copies<T> of_x, of_w, of_dy;
      ops.to_fp8(of_x, x, step::Fp8Format::kE4m3, step::Fp8Sides::kRows);
      ops.to_fp8(of_w, w, step::Fp8Format::kE4m3, step::Fp8Sides::kBoth);
      ops.to_fp8(of_x, x, step::Fp8Format::kE4m3, step::Fp8Sides::kColumns);
      ops.to_fp8(of_dy, dy, step::Fp8Format::kE5m2, step::Fp8Sides::kBoth);
      (void)ops.fp8_product({of_x.rows, of_x.scale}, {of_w.rows, of_w.scale}, d,
                            step::Fp8Sums::kFast, bias);
      (void)ops.fp8_product({of_dy.rows, of_dy.scale}, {of_w.columns, of_w.scale}, d,
                            step::Fp8Sums::kFast, T());
      (void)ops.fp8_product({of_dy.columns, of_dy.scale}, {of_x.columns, of_x.scale},
                            Dtype::kFloat32, step::Fp8Sums::kExact, T());
    };
  });
}

TEST_P(Operations, OfSeveralRanks) {
  const Dtype d = GetParam();
  for (const spec::Axis axis : {spec::Axis::kTensor, spec::Axis::kContext}) {
    const auto prepare = [d, axis](auto& ops, auto in) {
      return [&ops, axis, d, a = in({64, 48}, d), column = in({64}, d),
              indices = in({64}, Dtype::kInt64)] {
        ops.sum_over_(a, axis);
        ops.max_over_(column, axis);
        (void)ops.total_over(2.5, axis);
        (void)ops.own_columns(ops.join_columns(a, axis), axis);
        (void)ops.own_rows(ops.join_rows(a, axis), axis);
        (void)ops.sum_to_rows(column, axis);  // 64 rows on 3 ranks
        (void)ops.own_rows(indices, axis);
        const auto own = ops.own_indices(indices, 5, axis);
        ops.clear_(a, own.foreign);
        ops.clear_(column, own.foreign);
        (void)ops.cleared(column, own.foreign);
        (void)ops.join_columns(a, spec::Axis::kSelf);
        const auto theirs = ops.empty({64, 48}, d);
        ops.finish_shift(ops.begin_shift(a, theirs, axis), axis);
        ops.end_shifts(axis);
      };
    };
    for (const int ranks : {1, 2, 3}) testing::expect_same_requests("ranks", prepare, ranks);
  }
}

TEST_P(Operations, Elementwise) {
  const Dtype d = GetParam();
  same("binary", [d](auto& ops, auto in) {
    return [&ops, a = in({64, 48}, d), b = in({64, 48}, d), row = in({48}, d),
            column = in({64, 1}, d)] {
      (void)ops.add(a, b);
      (void)ops.subtract(a, column);
      (void)ops.multiply(a, row);
      (void)ops.multiply(column, row);
      (void)ops.maximum(a, b);
      (void)ops.divide(a, b);
      (void)ops.minimum(a, b);
      ops.add_(a, b);
      ops.add_(a, 0.5);
      ops.subtract_(a, column);
      ops.multiply_(a, row);
      ops.divide_(a, column);
      ops.divide_(a, 3.0);
      ops.scale_(a, 3.0);
      ops.multiply_into(a, b, b);
      ops.copy_(a, b);
    };
  });
  same("unary", [d](auto& ops, auto in) {
    return [&ops, a = in({64, 48}, d)] {
      (void)ops.negate(a);
      (void)ops.absolute(a);
      (void)ops.sign(a);
      (void)ops.exp(a);
      (void)ops.cosine(a);
      (void)ops.sine(a);
      (void)ops.sigmoid(a);
      (void)ops.log_sigmoid(a);
      (void)ops.clamp(a, -0.5, 0.5);
      (void)ops.clone(a);
      (void)ops.ones_like(a);
      (void)ops.softcap_slope(a, 30);
      ops.exp_(a);
      ops.log_(a);
      ops.softcap_(a, 30);
      ops.zero_(a);
    };
  });
  same("comparisons", [d](auto& ops, auto in) {
    return [&ops, a = in({64, 48}, d), b = in({64, 48}, d)] {
      (void)ops.above(a, b);
      (void)ops.above(a, 0.5);
      (void)ops.at_least(a, b);
      (void)ops.at_most(a, 0.5);
      (void)ops.equal(a, b);
    };
  });
  for (const auto kind : {spec::Activation::kSilu, spec::Activation::kGelu,
                          spec::Activation::kGeluTanh, spec::Activation::kRelu}) {
    same("activation", [d, kind](auto& ops, auto in) {
      return [&ops, kind, a = in({64, 48}, d), b = in({64, 48}, d)] {
        (void)ops.activate(a, kind);
        (void)ops.activate_backward(b, a, kind);
        ops.activate_(a, kind);
      };
    });
  }
}

TEST_P(Operations, MakingAndViews) {
  const Dtype d = GetParam();
  same("making", [d](auto& ops, auto in) {
    return [&ops, d, a = in({64, 48}, d), host = in.host({64, 48}, d)] {
      (void)ops.empty({7, 9}, d);
      (void)ops.zeros({7, 9}, d);
      (void)ops.iota(17);
      (void)ops.iota(5, 64);
      (void)ops.from_host(std::vector{1.0F, 2.0F, 3.0F});
      (void)ops.from_host(std::vector<std::int64_t>{1, 2, 3});
      (void)ops.places_of({5, 200, 1, 0, 64}, 3);
      (void)ops.filled_like(a, 3);
      (void)ops.to_device(host);
      (void)ops.to_host(a);
      (void)ops.from_pinned(ops.to_pinned(a));
      (void)ops.view(a, {-1});
      (void)ops.narrow(a, 0, 3, 5);
      (void)ops.select(a, 0, 3);
      (void)ops.clone(ops.narrow(ops.by_head(ops.view(a, {64, 6, 8}), 2), 2, 3, 5));
      (void)ops.convert(a, Dtype::kFloat32);
      (void)ops.convert(a, Dtype::kBfloat16);
      (void)ops.read(ops.sum(a));
    };
  });
}

TEST_P(Operations, Reductions) {
  const Dtype d = GetParam();
  same("reductions", [d](auto& ops, auto in) {
    return [&ops, d, wide = in({700}, Dtype::kFloat32), a = in({64, 48}, d),
            cube = in({3, 16, 48}, d)] {
      (void)ops.sum(a);
      (void)ops.sum_last(a);
      (void)ops.max_last(a);
      (void)ops.sum_rows(a, d);
      (void)ops.sum_rows(a, Dtype::kFloat32);
      (void)ops.sum_rows(cube, d);
      (void)ops.argmax_last(a);
      (void)ops.norm_of(wide);  // gradients are float32
      (void)ops.read_all(ops.view(ops.norm_of(wide), {1}));
    };
  });
}

// Sampling works on wide logits.
TEST_P(Operations, Sampling) {
  same("sampling", [](auto& ops, auto in) {
    return [&ops, a = in({6, 500}, Dtype::kFloat32), target = in({6, 1}, Dtype::kFloat32),
            seen = in({6, 40}, Dtype::kInt64), amounts = in({6, 40}, Dtype::kFloat32)] {
      (void)ops.softmax_last(a);
      (void)ops.sort_descending(a);
      ops.cumulate_last_(a);
      ops.drop_beyond_mass_(a, 0.9);
      ops.drop_below_(a, 0.1);
      ops.penalize_(a, seen, amounts, 1);
      ops.penalize_(a, seen, amounts, 1.5);
      (void)ops.search_last(a, target);
    };
  });
  for (const std::int64_t rows : {6, 200}) {
    SCOPED_TRACE(rows);
    same("sorting", [rows](auto& ops, auto in) {
      return [&ops, a = in({rows, 5000}, Dtype::kFloat32)] { (void)ops.sort_descending(a); };
    });
  }
}

TEST_P(Operations, Indices) {
  const Dtype d = GetParam();
  same("indices", [d](auto& ops, auto in) {
    return [&ops, table = in({100, 48}, d), rows_on_host = in.host({100, 48}, d),
            wide = in({100, 48}, Dtype::kFloat32), rows = in({64, 48}, d),
            long_table = in({100, 96}, Dtype::kFloat32), long_rows = in({64, 96}, d),
            at = in({64}, Dtype::kInt64), logits = in({64, 90}, Dtype::kFloat32),
            values = in({64}, Dtype::kFloat32), different = in({64}, Dtype::kInt64)] {
      (void)ops.take_rows(table, at);
      ops.put_rows_(table, different, rows);
      (void)ops.take_rows_from_host(rows_on_host, at);
      ops.add_to_rows_(table, at, rows);
      ops.add_to_rows_(wide, at, rows);
      ops.add_to_rows_(long_table, at, long_rows);
      (void)ops.gather_last(logits, at);
      ops.add_to_last_(logits, at, values);
      (void)ops.last_rows(at, 9);
      (void)ops.plus(at, 2);
    };
  });
}

TEST_P(Operations, Pages) {
  const Dtype d = GetParam();
  same("pages", [d](auto& ops, auto in) {
    return [&ops, pool = in({9 * 2 * 64, 16}, d), places = in({70, 2}, Dtype::kInt64),
            heads = in({70, 2, 16}, d), table = in({3, 4}, Dtype::kInt64),
            at = in({3}, Dtype::kInt64)] {
      ops.put_heads_(pool, places, heads);
      ops.put_numbers_(table, std::vector<std::int64_t>(12, 128));
      if (ops.cuda()) return;  // Neap's kernel reads the table
      (void)ops.page_places(table, at, 2);
      (void)ops.page_parts(table, 2);
    };
  });
}

TEST_P(Operations, Norms) {
  const Dtype d = GetParam();
  for (const auto kind :
       {spec::NormKind::kLayerNorm, spec::NormKind::kRms, spec::NormKind::kRmsOffset}) {
    for (const bool trained : {true, false}) {
      same("norm", [=](auto& ops, auto in) {
        const bool biased = kind == spec::NormKind::kLayerNorm;
        using T = decltype(in({1}, d));
        return [&ops, kind, x = in({70, 48}, d), dy = in({70, 48}, d), w = in({48}, d),
                b = biased ? in({48}, d) : T(), dw = trained ? in({48}, Dtype::kFloat32) : T(),
                db = trained && biased ? in({48}, Dtype::kFloat32) : T()] {
          const auto r = ops.norm(kind, x, w, b, 1e-5);
          (void)ops.norm_backward(kind, dy, x, r.mean, r.rstd, w, dw, db);
        };
      });
    }
  }
}

TEST_P(Operations, NormsOfWideRows) {
  const Dtype d = GetParam();
  for (const auto kind : {spec::NormKind::kRms, spec::NormKind::kRmsOffset}) {
    for (const bool trained : {true, false}) {
      same("norm", [=](auto& ops, auto in) {
        using T = decltype(in({1}, d));
        return [&ops, kind, x = in({70, 512}, d), dy = in({70, 512}, d), w = in({512}, d),
                added = in({70, 512}, d), dw = trained ? in({512}, Dtype::kFloat32) : T()] {
          spec::Architecture a;
          a.norm = kind;
          step::Norm<T> p;
          p.weight = w;
          p.d_weight = dw;
          step::NormStatistics<T> statistics;
          (void)step::norm(ops, a, p, x, &statistics);
          (void)step::norm_backward(ops, a, p, x, statistics, dy,
                                    static_cast<step::GradientQueue<T>*>(nullptr), added);
        };
      });
    }
  }
}

TEST_P(Operations, Optimizers) {
  if (GetParam() != Dtype::kFloat32) return;  // they work in float32
  same("fused steps", [](auto& ops, auto in) {
    const auto flat = [&in] { return in({70000}, Dtype::kFloat32); };
    using T = decltype(in({1}, Dtype::kFloat32));
    return [&ops, x = flat(), g = flat(), m = flat(), v = flat()] {
      const T count = ops.filled_like(x, 1);
      ops.fused_adamw_(x, g, m, v, count, 1e-3, {});
      ops.fused_sgd_(x, g, m, 1e-3, {.momentum = 0.9});
      ops.fused_sgd_(x, g, T(), 1e-3, {});
    };
  });
  same("in place", [](auto& ops, auto in) {
    return [&ops, a = in({64, 48}, Dtype::kFloat32), b = in({64, 48}, Dtype::kFloat32),
            row = in({48}, Dtype::kFloat32), one = in({}, Dtype::kFloat32)] {
      ops.add_scaled_(a, b, 0.5);
      ops.add_multiply_(a, b, b, 0.5);
      ops.multiply_(a, one);
      ops.divide_(row, one);
      ops.sqrt_(a);
      ops.rsqrt_(b);
      (void)ops.max_rows(a);
      (void)ops.clamp(one, 1, INFINITY);
      (void)ops.norm_of(a);
      (void)ops.multiply(a, row);
    };
  });
  same("rounding", [](auto& ops, auto in) {
    return [&ops, to = in({100, 700}, Dtype::kBfloat16), value = in({100, 700}, Dtype::kFloat32)] {
      const auto noise = ops.rounding_noise(3, 80000);
      ops.round_stochastically_(to, value, noise, 4, 9000);
    };
  });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Operations, ::testing::Values(Dtype::kFloat32, Dtype::kBfloat16),
                         [](const auto& i) {
                           return i.param == Dtype::kFloat32 ? "float32" : "bfloat16";
                         });

}  // namespace
}  // namespace neap
