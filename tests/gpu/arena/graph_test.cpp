// A graph captured over regions replays on the same addresses after any number of cycles.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "arena/arena.h"
#include "conformance/device_words.h"
#include "conformance/devices.h"
#include "device/cuda/driver.h"

namespace neap::arena {
namespace {

using device::cuda::DevicePtr;
using device::cuda::Driver;
using device::cuda::Stream;
using Graph = void*;
using GraphExec = void*;

/// What only this test needs of the driver.
struct GraphCalls {
  int (*begin)(Stream, int mode) = nullptr;
  int (*end)(Stream, Graph*) = nullptr;
  int (*instantiate)(GraphExec*, Graph, unsigned long long flags) = nullptr;
  int (*launch)(GraphExec, Stream) = nullptr;
  int (*destroy)(Graph) = nullptr;
  int (*destroy_exec)(GraphExec) = nullptr;
  int (*copy)(DevicePtr, DevicePtr, std::size_t, Stream) = nullptr;

  bool load(const Driver& driver) {
    void* library = ::dlopen(driver.path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return false;
    const auto find = [&](auto& into, const char* name) {
      into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(::dlsym(library, name));
      return into != nullptr;
    };
    return find(begin, "cuStreamBeginCapture_v2") && find(end, "cuStreamEndCapture") &&
           find(instantiate, "cuGraphInstantiateWithFlags") && find(launch, "cuGraphLaunch") &&
           find(destroy, "cuGraphDestroy") && find(destroy_exec, "cuGraphExecDestroy") &&
           find(copy, "cuMemcpyDtoDAsync_v2");
  }
};

TEST(ArenaGraph, ReplaysAfterAHundredCycles) {
  const auto loaded = device::cuda::load_driver();
  if (!loaded.ok()) GTEST_SKIP() << loaded.status().message();
  const Driver& driver = **loaded;
  GraphCalls graphs;
  if (!graphs.load(driver)) GTEST_SKIP() << driver.path << " has no graphs";
  auto made = device::cuda_maker().make(2_GiB);
  ASSERT_NE(made.real, nullptr) << made.skip_reason;
  device::LedgerDevice& device = *made.real;
  device::cuda::Context context = nullptr;
  int card = 0;
  ASSERT_EQ(driver.device_get(&card, 0), 0);
  ASSERT_EQ(driver.context_retain(&context, card), 0);
  ASSERT_EQ(driver.context_push(context), 0);

  constexpr Bytes kSize = 64_MiB;
  device::DeviceWords words(device, std::size_t{1} << 20);
  auto arena = std::move(Arena::make(device)).value();
  const auto from = arena->create("weights", kSize, Policy::kHost);
  const auto to = arena->create("graphs", kSize, Policy::kDiscard);
  ASSERT_TRUE(from.ok() && to.ok());
  const auto pattern = [](std::size_t i) { return i * 0x9e3779b97f4a7c15u; };
  words.fill(from->address, kSize, pattern);

  Stream stream = nullptr;
  ASSERT_EQ(driver.stream_create(&stream, device::cuda::kStreamNonBlocking), 0);
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  constexpr int kThreadLocal = 1;
  ASSERT_EQ(graphs.begin(stream, kThreadLocal), 0);
  ASSERT_EQ(driver.fill_async(to->address, 0x11, kSize.count(), stream), 0);
  ASSERT_EQ(graphs.copy(to->address, from->address, kSize.count() / 2, stream), 0);
  ASSERT_EQ(graphs.end(stream, &graph), 0);
  ASSERT_EQ(graphs.instantiate(&exec, graph, 0), 0);

  const Bytes half = kSize / 2u;
  for (int cycle = 0; cycle < 100; ++cycle) {
    PauseOptions options;
    options.release_pages = cycle % 2 == 0;
    ASSERT_TRUE(arena->pause({}, options).ok());
    ASSERT_TRUE(arena->resume({}).ok());
    ASSERT_EQ(graphs.launch(exec, stream), 0);
    ASSERT_EQ(driver.stream_synchronize(stream), 0);
    ASSERT_TRUE(words.holds(to->address, half, pattern)) << "cycle " << cycle;
    ASSERT_TRUE(words.holds(to->address + half.count(), half,
                            [](std::size_t) { return std::uint64_t{0x1111111111111111}; }))
        << "cycle " << cycle;
  }
  EXPECT_EQ(graphs.destroy_exec(exec), 0);
  EXPECT_EQ(graphs.destroy(graph), 0);
  EXPECT_EQ(driver.stream_destroy(stream), 0);
  (void)driver.context_pop(&context);
}

}  // namespace
}  // namespace neap::arena
