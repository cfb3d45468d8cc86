// What rests on the host comes to slots and goes back: blocks with their gradients, and optimizer states.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "bridge/streamed_states.h"
#include "unit/bridge/slots.h"

namespace neap::bridge {
namespace {

// ---- optimizer states --------------------------------------------------------------------------

// Units in parts of which one half is only fetched and the other one stored, too.
struct States {
  States() {
    for (std::size_t u = 0; u < kUnits.size(); ++u) {
      for (std::size_t first = 0; first < kUnits[u]; first += kPart)
        parts.push_back({u, first, std::min(kPart, kUnits[u] - first)});
      const Words words = words_of(*states.states(u).host);
      std::iota(words.begin(), words.end(), 1000 * u);
    }
  }
  // Adds one to what is stored, and checks what was fetched in round `round`.
  void step(std::uint64_t round) {
    const auto copies = [&](std::size_t i) {
      const Part& part = parts[i];
      const Resting storage = states.states(part.unit);
      const Bytes half = bytes_of(part.count / 2);
      const Bytes first = bytes_of(part.first);
      return std::vector<StreamedStates::Copy>{
          {storage, Kind::kGradients, first, Bytes(), half, true, false},
          {storage, Kind::kStates, first + half, half, bytes_of(part.count) - half}};
    };
    visited = 0;
    states.for_each(parts.size(), copies, [&](std::size_t i, std::size_t slot) {
      ASSERT_EQ(i, visited++);
      const Part& part = parts[i];
      for (std::size_t w = 0; w < part.count; ++w) {
        const bool stored = w >= part.count / 2;
        ASSERT_EQ(slots.words(slot)[w], 1000 * part.unit + part.first + w + (stored ? round : 0));
        ++slots.words(slot)[w];
      }
    });
  }
  struct Part {
    std::size_t unit, first, count;
  };
  static constexpr std::size_t kPart = 64;
  static constexpr std::array<std::size_t, 3> kUnits = {300, 64, 130};
  Slots slots{3, kPart};
  StreamedStates states{slots.arena(),
                        device::StreamId::kDefault,
                        "states",
                        slots.parts(),
                        {bytes_of(kUnits[0]), bytes_of(kUnits[1]), bytes_of(kUnits[2])}};
  std::vector<Part> parts;
  std::size_t visited = 0;
};

TEST(StreamedStates, EveryPartIsSteppedAndWhatIsStoredGoesBack) {
  States s;
  for (std::uint64_t round = 0; round < 5; ++round) ASSERT_NO_FATAL_FAILURE(s.step(round));
  const LinkUses use = value_or_throw(s.states.take_use());
  EXPECT_EQ(of(use, Kind::kStates).to_device, 5 * bytes_of(150 + 32 + 65));
  EXPECT_EQ(of(use, Kind::kGradients).to_device, 5 * bytes_of(150 + 32 + 65));
  EXPECT_EQ(of(use, Kind::kStates).to_host, 5 * bytes_of(150 + 32 + 65));
  EXPECT_GT(of(use, Kind::kStates).visible_seconds, 0);
  EXPECT_EQ(of(use, Kind::kGradients).to_host, Bytes());
  const LinkUses again = value_or_throw(s.states.take_use());
  for (const Kind kind : step::kStreamedKinds) {
    EXPECT_EQ(of(again, kind).to_device + of(again, kind).to_host, Bytes());
    EXPECT_EQ(of(again, kind).visible_seconds, 0);
  }
}

TEST(StreamedStates, EveryDeviceCallMayFail) {
  int failed = 0;
  for (std::uint64_t k = 1;; ++k) {
    SCOPED_TRACE(format("call {}", k));
    States s;
    s.slots.fault().arm({k, std::nullopt, ErrorCode::kDriver, false});
    bool threw = false;
    try {
      s.step(0);
    } catch (const Error& e) {
      EXPECT_EQ(e.status().code(), ErrorCode::kDriver);
      threw = true;
    }
    if (!s.slots.fault().fired()) break;
    failed += threw;
    EXPECT_TRUE(threw || s.visited == s.parts.size());
    // Nothing is under way any more: the slots can be used again.
    s.slots.fault().arm({});
    for (std::size_t u = 0; u < s.kUnits.size(); ++u)
      std::iota(words_of(*s.states.states(u).host).begin(),
                words_of(*s.states.states(u).host).end(), 1000 * u);
    ASSERT_NO_FATAL_FAILURE(s.step(0));
    ASSERT_NO_FATAL_FAILURE(s.step(1));
  }
  EXPECT_GT(failed, 20);
}

TEST(StreamedStates, AStepThatThrowsLeavesNothingUnderWay) {
  States s;
  const auto copies = [&](std::size_t) {
    return std::vector<StreamedStates::Copy>{
        {s.states.states(0), Kind::kStates, Bytes(), Bytes(), bytes_of(64)}};
  };
  EXPECT_THROW(s.states.for_each(5, copies,
                                 [](std::size_t i, std::size_t) {
                                   if (i == 2) throw std::runtime_error("stop");
                                 }),
               std::runtime_error);
  const std::vector<std::string> tags = {"slots"};
  EXPECT_TRUE(s.slots.arena().pause(tags).ok());
}

// ---- blocks with gradients ---------------------------------------------------------------------

class RestingBlocks : public ::testing::TestWithParam<Rests> {};
INSTANTIATE_TEST_SUITE_P(OnHostAndDisk, RestingBlocks,
                         ::testing::Values(Rests::kHost, Rests::kDisk, Rests::kFiles));

TEST_P(RestingBlocks, GradientsOfAMiniBatchAddUp) {
  for (const std::size_t blocks : {3u, 4u, 9u}) {
    for (const std::int64_t passes : {1, 2, 5}) {
      SCOPED_TRACE(format("{} blocks, {} passes", blocks, passes));
      Blocks b(blocks, {}, GetParam());
      for (int round = 0; round < 2; ++round) {
        b.completed = 0;
        ASSERT_NO_FATAL_FAILURE(b.mini_batch(passes));
        EXPECT_EQ(b.completed, blocks);
        for (std::size_t i = 0; i < blocks; ++i)
          for (const std::uint64_t w : b.gradients(i))
            ASSERT_EQ(w, (i + 1) * static_cast<std::uint64_t>(passes));
      }
      // Each pass stores all gradients; all but the first one fetch them. Of the weights the slots keep two
      // at each turn.
      const LinkUses use = value_or_throw(b.streamed->take_use());
      const auto all = static_cast<std::uint64_t>(blocks);
      const auto n = static_cast<std::uint64_t>(passes);
      const std::uint64_t weights = all + (2 * n - 1) * (all - 2);
      const Bytes gradients_out = bytes_of(b.kWords) * (2 * n * all);
      const Bytes gradients_in = bytes_of(b.kWords) * (2 * (n - 1) * all);
      EXPECT_EQ(of(use, Kind::kGradients).to_host, gradients_out);
      EXPECT_EQ(of(use, Kind::kGradients).to_device, gradients_in);
      EXPECT_EQ(of(use, Kind::kInputs).to_host, bytes_of(b.kInputs) * (2 * n * all));
      EXPECT_EQ(of(use, Kind::kInputs).to_device, bytes_of(b.kInputs) * (2 * n * (all - 2)));
      EXPECT_EQ(of(use, Kind::kWeights).to_host, Bytes());
      EXPECT_EQ(of(use, Kind::kWeights).to_device, bytes_of(b.kWords) * (2 * weights));
      EXPECT_EQ(of(use, Kind::kStates).to_device, Bytes());
      const auto on_disk = [](Bytes bytes) { return GetParam() != Rests::kHost ? bytes : Bytes(); };
      EXPECT_EQ(of(use, Kind::kWeights).disk_read, on_disk(of(use, Kind::kWeights).to_device));
      EXPECT_EQ(of(use, Kind::kGradients).disk_read, on_disk(gradients_in));
      EXPECT_EQ(of(use, Kind::kGradients).disk_written, on_disk(gradients_out));
      EXPECT_EQ(of(use, Kind::kInputs).disk_read, Bytes());
    }
  }
}

TEST_P(RestingBlocks, TablesTakeTurnsInTheMemoryOfTheSlots) {
  // An embedding and a head, a tied head, and an embedding alone.
  for (const step::TableUnits turns : {step::TableUnits{0, 1}, {0, 0}, {0, std::nullopt}}) {
    for (const std::int64_t passes : {1, 2, 5}) {
      SCOPED_TRACE(format("head {}, {} passes", turns.head.value_or(9), passes));
      Blocks b(4, turns, GetParam());
      for (int round = 0; round < 2; ++round) {
        b.completed = b.completed_tables = 0;
        ASSERT_NO_FATAL_FAILURE(b.mini_batch(passes));
        const auto n = static_cast<std::uint64_t>(passes);
        for (std::size_t i = 0; i < b.blocks; ++i)
          for (const std::uint64_t w : b.gradients(i)) ASSERT_EQ(w, (i + 1) * n);
        EXPECT_EQ(b.completed, b.blocks);
        EXPECT_EQ(b.completed_tables, turns.head == 1U ? 2U : 1U);
        const bool tied = turns.head == turns.embedding;
        for (const std::uint64_t w : words_of(*b.streamed->table("embed")->gradients))
          ASSERT_EQ(w, tied ? 10 * n + 1 : n);
        for (const std::uint64_t w : words_of(*b.streamed->table("head")->gradients))
          ASSERT_EQ(w, turns.head == 1U ? 10 * n : 7777);
      }
    }
  }
}

TEST_P(RestingBlocks, AllComeTogether) {
  Blocks b(3, {}, GetParam());
  const std::vector<SlotPart> parts(b.slots.parts().begin(), b.slots.parts().begin() + 3);
  std::vector<std::uint64_t> seen;
  throw_if_error(b.streamed->open());
  for (std::size_t i = 0; i < 3; ++i) throw_if_error(b.streamed->bring_to_generate(i, parts[i]));
  for (std::size_t i = 0; i < 3; ++i) seen.push_back(b.slots.words(i).front());
  throw_if_error(b.streamed->close());
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{100, 101, 102}));
  EXPECT_EQ(of(value_or_throw(b.streamed->take_use()), Kind::kWeights).to_device,
            bytes_of(b.kWords) * 3);
}

TEST_P(RestingBlocks, EveryDeviceCallMayFail) {
  int failed = 0;
  for (std::uint64_t k = 1;; ++k) {
    SCOPED_TRACE(format("call {}", k));
    Blocks b(4, {0, 1}, GetParam());
    b.slots.fault().arm({k, std::nullopt, ErrorCode::kDriver, false});
    bool threw = false;
    try {
      b.mini_batch(2);
    } catch (const Error&) {
      threw = true;
    }
    const bool fired = b.slots.fault().fired();
    b.slots.fault().arm({});
    if (!fired) break;
    EXPECT_TRUE(threw);
    failed += threw;
    (void)b.streamed->close();
    ASSERT_NO_FATAL_FAILURE(b.mini_batch(2));
    for (const std::uint64_t w : b.gradients(3)) ASSERT_EQ(w, 8U);
  }
  EXPECT_GT(failed, 20);
}

// ---- inputs of blocks without the blocks -------------------------------------------------------

// On a stage several passes wait for their backward, each with inputs of its own size. In a backward
// of two parts the first one reads them.
void expect_inputs_wait(bool two_parts) {
  constexpr std::size_t kBlocks = 4, kWords = 512, kWaiting = 3, kPasses = 6;
  const spec::BlockChunk all{{0, kBlocks}};
  Slots slots(2, kWords);
  std::vector<StreamedBlocks::Slot> places;
  for (const SlotPart& part : slots.parts()) places.push_back({{}, {}, part});
  StreamedBlocks inputs(
      slots.arena(), device::StreamId::kDefault, "inputs", places,
      std::vector<StreamedBlocks::UnitBytes>(kBlocks, {"", {}, {}, kWaiting * bytes_of(kWords)}),
      {}, {}, kWaiting);
  const auto words_of_pass = [](std::size_t pass) { return pass == 3 ? 0 : 100 + 37 * pass; };
  const auto forward = [&](std::size_t pass) {
    inputs.expect(step::Sweep::kForward, 1, all);
    inputs.set_input_bytes(static_cast<std::int64_t>(8 * words_of_pass(pass)));
    for (std::size_t b = 0; b < kBlocks; ++b) {
      const auto place = inputs.use(b, step::BlockUse::kKeepInputs);
      std::ranges::fill(slots.words(place.slot).first(words_of_pass(pass)), 1000 * pass + b);
      inputs.release(b);
    }
  };
  const auto backward = [&](std::size_t pass) {
    inputs.expect(two_parts ? step::Sweep::kBackwardInput : step::Sweep::kBackward, 1, all);
    for (std::size_t b = kBlocks; b-- > 0;) {
      const auto place =
          inputs.use(b, two_parts ? step::BlockUse::kReadBack : step::BlockUse::kAddGradients);
      for (const std::uint64_t w : slots.words(place.slot).first(words_of_pass(pass)))
        ASSERT_EQ(w, 1000 * pass + b);
      inputs.release(b);
    }
    if (two_parts) inputs.expect(step::Sweep::kBackwardWeights, 1, all);
  };
  Bytes stored;
  for (std::size_t pass = 0; pass < kPasses; ++pass)
    stored += bytes_of(kBlocks * words_of_pass(pass));
  for (int round = 0; round < 2; ++round) {
    throw_if_error(inputs.open());
    inputs.begin_mini_batch(kPasses);
    for (std::size_t pass = 0; pass < kPasses + kWaiting - 1; ++pass) {
      if (pass < kPasses) forward(pass);
      if (pass + 1 < kWaiting) continue;
      ASSERT_NO_FATAL_FAILURE(backward(pass + 1 - kWaiting));
    }
    throw_if_error(inputs.close());
    const LinkUse use = of(value_or_throw(inputs.take_use()), Kind::kInputs);
    EXPECT_EQ(use.to_host, stored);
    EXPECT_EQ(use.to_device, stored);
  }
}

TEST(StreamedInputs, PassesWaitForTheirBackward) {
  for (const bool two_parts : {false, true})
    ASSERT_NO_FATAL_FAILURE(expect_inputs_wait(two_parts)) << two_parts;
}

}  // namespace
}  // namespace neap::bridge
