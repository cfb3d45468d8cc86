#include "parallel/nccl_calls.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/format.h"

namespace neap::parallel {
namespace {

using ::testing::ElementsAre;

// What a library was asked for, in order; places are elements from `base`, -1: of no tensor there.
struct Asked {
  std::vector<std::string> calls;
  const float* base = nullptr;
  std::string fails;  // the call with that name
};
Asked asked;

std::ptrdiff_t place(const void* p) {
  const std::ptrdiff_t at = static_cast<const float*>(p) - asked.base;
  return at >= 0 && at < 16 ? at : -1;
}
int answer(const char* name, const std::string& call) {
  asked.calls.push_back(call);
  return asked.fails == name ? 5 : kNcclSuccess;
}

const NcclApi& recording_api() {
  static const NcclApi kApi = [] {
    NcclApi api{};
    api.all_reduce = [](const void* in, void* out, std::size_t n, int type, int op, NcclComm,
                        CudaStream) {
      return answer("all_reduce", format("all_reduce {} -> {} n {} type {} op {}", place(in),
                                         place(out), n, type, op));
    };
    api.reduce_scatter = [](const void* in, void* out, std::size_t n, int, int op, NcclComm,
                            CudaStream) {
      return answer("reduce_scatter",
                    format("reduce_scatter {} -> {} n {} op {}", place(in), place(out), n, op));
    };
    api.all_gather = [](const void* in, void* out, std::size_t n, int, NcclComm, CudaStream) {
      return answer("all_gather", format("all_gather {} -> {} n {}", place(in), place(out), n));
    };
    api.reduce = [](const void* in, void* out, std::size_t n, int, int, int root, NcclComm,
                    CudaStream) {
      return answer("reduce",
                    format("reduce {} -> {} n {} root {}", place(in), place(out), n, root));
    };
    api.broadcast = [](const void* in, void* out, std::size_t n, int, int root, NcclComm,
                       CudaStream) {
      return answer("broadcast",
                    format("broadcast {} -> {} n {} root {}", place(in), place(out), n, root));
    };
    api.send = [](const void* in, std::size_t n, int, int to, NcclComm, CudaStream) {
      return answer("send", format("send {} n {} to {}", place(in), n, to));
    };
    api.receive = [](void* out, std::size_t n, int, int from, NcclComm, CudaStream) {
      return answer("receive", format("receive {} n {} from {}", place(out), n, from));
    };
    api.group_start = [] { return answer("start", "start"); };
    api.group_end = [] { return answer("end", "end"); };
    return api;
  }();
  return kApi;
}

class Calls : public ::testing::Test {
 protected:
  Calls() {
    asked = {};
    asked.base = t_.data_ptr<float>();
  }
  [[nodiscard]] static NcclCalls of_rank(int rank) {
    return {recording_api(), nullptr, rank, nullptr};
  }
  at::Tensor t_ = at::zeros({12});
};

TEST_F(Calls, PartsOfOneSizeAreOneCall) {
  EXPECT_EQ(of_rank(2).reduce_scatter(t_, {4, 4, 4}), kNcclSuccess);
  EXPECT_EQ(of_rank(1).all_gather(t_.narrow(0, 4, 4), t_, {4, 4, 4}), kNcclSuccess);
  EXPECT_THAT(asked.calls, ElementsAre("reduce_scatter 0 -> 8 n 4 op 0", "all_gather 4 -> 0 n 4"));
}

TEST_F(Calls, OtherPartsGoByRankAndEmptyOnesNotAtAll) {
  EXPECT_EQ(of_rank(2).reduce_scatter(t_, {5, 0, 7}), kNcclSuccess);
  EXPECT_THAT(asked.calls,
              ElementsAre("start", "reduce 0 -> 0 n 5 root 0", "reduce 5 -> 5 n 7 root 2", "end"));
  asked.calls.clear();
  const at::Tensor mine = at::ones({5});  // not in its place
  EXPECT_EQ(of_rank(0).all_gather(mine, t_, {5, 0, 7}), kNcclSuccess);
  EXPECT_THAT(asked.calls, ElementsAre("start", "broadcast -1 -> 0 n 5 root 0",
                                       "broadcast 5 -> 5 n 7 root 2", "end"));
}

TEST_F(Calls, ABegunGroupEndsBehindItsFirstError) {
  asked.fails = "reduce";
  EXPECT_EQ(of_rank(0).reduce_scatter(t_, {5, 7}), 5);
  EXPECT_THAT(asked.calls, ElementsAre("start", "reduce 0 -> 0 n 5 root 0", "end"));
  asked.calls.clear();
  asked.fails = "start";
  EXPECT_EQ(of_rank(0).reduce_scatter(t_, {5, 7}), 5);
  EXPECT_THAT(asked.calls, ElementsAre("start"));
}

TEST_F(Calls, TypesAndOperationsAreThoseOfNccl) {
  const auto type_of = [](at::ScalarType type, Reduce op) {
    asked.calls.clear();
    const at::Tensor t = at::zeros({3}, type);
    EXPECT_EQ(of_rank(0).all_reduce(t, op), kNcclSuccess);
    return asked.calls.at(0).substr(asked.calls[0].find("n 3"));
  };
  EXPECT_EQ(type_of(at::kFloat, Reduce::kSum), "n 3 type 7 op 0");
  EXPECT_EQ(type_of(at::kDouble, Reduce::kMax), "n 3 type 8 op 2");
  EXPECT_EQ(type_of(at::kBFloat16, Reduce::kSum), "n 3 type 9 op 0");
  EXPECT_EQ(type_of(at::kHalf, Reduce::kSum), "n 3 type 6 op 0");
  EXPECT_EQ(type_of(at::kLong, Reduce::kSum), "n 3 type 4 op 0");
  EXPECT_EQ(type_of(at::kInt, Reduce::kSum), "n 3 type 2 op 0");
  EXPECT_EQ(type_of(at::kByte, Reduce::kSum), "n 3 type 1 op 0");
}

TEST_F(Calls, OneRankGivesToAnother) {
  const at::Tensor part = t_.narrow(0, 2, 3);
  EXPECT_EQ(of_rank(0).send(part, 1), kNcclSuccess);
  EXPECT_EQ(of_rank(0).receive(part, 2), kNcclSuccess);
  EXPECT_EQ(of_rank(0).broadcast(part, 1), kNcclSuccess);
  EXPECT_THAT(asked.calls, ElementsAre("send 2 n 3 to 1", "receive 2 n 3 from 2",
                                       "broadcast 2 -> 2 n 3 root 1"));
}

}  // namespace
}  // namespace neap::parallel
