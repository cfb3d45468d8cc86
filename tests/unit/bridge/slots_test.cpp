// What rests on the host comes to slots and goes back: blocks with their gradients, and optimizer states.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "bridge/streamed_blocks.h"
#include "bridge/streamed_states.h"
#include "device/fault/fault_device.h"
#include "unit/bridge/shadow.h"

namespace neap::bridge {
namespace {

using Kind = step::StreamedKind;
using Words = std::span<std::uint64_t>;

const LinkUse& of(const LinkUses& uses, Kind kind) {
  return uses[index_of(kind)];
}

Words words_of(const arena::HostStorage& storage) {
  return {reinterpret_cast<std::uint64_t*>(storage.data()), storage.size().count() / 8};
}
Bytes bytes_of(std::size_t words) {
  return Bytes(words * 8);
}

// A device that may fail, and one region of slots.
class Slots {
 public:
  Slots(std::size_t count, std::size_t words)
      : real_(host_device(64_MiB)), fault_(device::make_fault_device(*real_)), words_(words) {
    arena::Options options;
    options.touch_threads = 1;
    arena_ = value_or_throw(arena::Arena::make(*fault_, options));
    region_ =
        value_or_throw(arena_->create("slots", bytes_of(words) * count, arena::Policy::kDiscard));
    for (std::size_t i = 0; i < count; ++i)
      parts_.push_back({format("slot.{}", i), region_.id, bytes_of(words) * i});
  }
  ~Slots() { fault_->arm({}); }
  [[nodiscard]] arena::Arena& arena() { return *arena_; }
  [[nodiscard]] device::FaultDevice& fault() { return *fault_; }
  [[nodiscard]] const std::vector<SlotPart>& parts() const { return parts_; }
  [[nodiscard]] Words words(std::size_t slot) const {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): regions are known by address
    return {reinterpret_cast<std::uint64_t*>(region_.address + parts_[slot].offset.count()),
            words_};
  }

 private:
  std::unique_ptr<device::HostDevice> real_;
  std::unique_ptr<device::FaultDevice> fault_;
  std::unique_ptr<arena::Arena> arena_;
  arena::RegionInfo region_;
  std::vector<SlotPart> parts_;
  std::size_t words_;
};

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

struct Blocks {
  explicit Blocks(std::size_t count, const step::TableUnits& turns = {})
      : blocks(count), turns_of(turns) {
    std::vector<StreamedBlocks::Slot> places;
    for (std::size_t i = 0; i < kSlots; ++i)
      places.push_back(
          {slots.parts()[i], slots.parts()[kSlots + i], slots.parts()[2 * kSlots + i]});
    const Bytes bytes = bytes_of(kWords);
    streamed.emplace(slots.arena(), device::StreamId::kDefault, "blocks", places,
                     std::vector<StreamedBlocks::UnitBytes>(blocks, {"", bytes, bytes, bytes}),
                     tables());
    for (const char* name : {"embed", "head"}) {
      if (streamed->table(name) == nullptr) continue;
      std::ranges::fill(words_of(*streamed->table(name)->weights), kTable);
      std::ranges::fill(words_of(*streamed->table(name)->gradients), 7777);
    }
    for (std::size_t b = 0; b < blocks; ++b) {
      std::fill(weights(b).begin(), weights(b).end(), 100 + b);
      std::fill(gradients(b).begin(), gradients(b).end(), 7777);  // of a mini-batch before
    }
  }
  [[nodiscard]] Words weights(std::size_t b) const { return words_of(*streamed->block(b).weights); }
  [[nodiscard]] Words gradients(std::size_t b) const {
    return words_of(*streamed->block(b).gradients);
  }
  void visit(std::size_t b, step::BlockUse how, std::uint64_t pass) {
    const auto place = streamed->use(b, how);
    for (const std::uint64_t w : slots.words(place.slot)) ASSERT_EQ(w, 100 + b);
    const Words inputs = slots.words(2 * kSlots + place.slot).first(kInputs);
    if (how == step::BlockUse::kKeepInputs) std::ranges::fill(inputs, 1000 * pass + b);
    if (how == step::BlockUse::kAddGradients) {
      for (const std::uint64_t w : inputs) ASSERT_EQ(w, 1000 * pass + b);
      const Words to = slots.words(kSlots + place.slot);
      if (place.zero) std::fill(to.begin(), to.end(), 0);
      for (std::uint64_t& w : to) w += b + 1;
      completed += place.last;
    }
    streamed->release(b);
  }
  // Two units of tables, in the memory of all slots.
  StreamedBlocks::Tables tables() {
    if (!turns_of.any()) return {};
    const SlotPart& first = slots.parts().front();
    const SlotPart gradients{"gradients.table", first.region, bytes_of(kSlots * kWords)};
    const Bytes bytes = bytes_of(kSlots * kWords);
    return {{{"embed", bytes, bytes}, {"head", bytes, bytes}},
            turns_of,
            StreamedBlocks::Slot{{"weights.table", first.region, Bytes()}, gradients}};
  }
  void turn(step::Table table) {
    if (!turns_of.of(table)) return;
    const auto turn = streamed->use_table(table, step::BlockUse::kAddGradients);
    for (std::size_t i = 0; i < 2 * kSlots; ++i) {
      const Words words = slots.words(i);
      if (i < kSlots) {
        for (const std::uint64_t w : words) ASSERT_TRUE(!turn.weights || w == kTable);
        continue;
      }
      if (turn.zero) std::ranges::fill(words, 0);
      for (std::uint64_t& w : words) w += table == step::Table::kHead ? 10 : 1;
    }
    for (std::size_t i = 2 * kSlots; i < 3 * kSlots; ++i) std::ranges::fill(slots.words(i), 4444);
    completed_tables += turn.last;
    streamed->release_table();
  }
  // A phase of a mini-batch.
  void mini_batch(std::int64_t passes) {
    streamed->open();
    streamed->expect(step::Sweep::kForwardBackward, passes,
                     {{0, static_cast<std::int64_t>(blocks)}});
    for (std::int64_t pass = 0; pass < passes; ++pass) {
      streamed->set_input_bytes(8 * kInputs);
      const auto number = static_cast<std::uint64_t>(pass);
      for (std::size_t b = 0; b < blocks; ++b) visit(b, step::BlockUse::kKeepInputs, number);
      turn(step::Table::kHead);
      for (std::size_t b = blocks; b-- > 0;) visit(b, step::BlockUse::kAddGradients, number);
      if (!turns_of.tied() || pass + 1 == passes) turn(step::Table::kEmbedding);
    }
    throw_if_error(streamed->close());
  }
  static constexpr std::size_t kSlots = 2, kWords = 512, kInputs = 300;
  static constexpr std::uint64_t kTable = 5555;
  std::size_t blocks;
  step::TableUnits turns_of;
  Slots slots{3 * kSlots, kWords};
  std::optional<StreamedBlocks> streamed;
  std::size_t completed = 0, completed_tables = 0;
};

TEST(StreamedBlocks, GradientsOfAMiniBatchAddUpOnTheHost) {
  for (const std::size_t blocks : {3u, 4u, 9u}) {
    for (const std::int64_t passes : {1, 2, 5}) {
      SCOPED_TRACE(format("{} blocks, {} passes", blocks, passes));
      Blocks b(blocks);
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
    }
  }
}

TEST(StreamedBlocks, TablesTakeTurnsInTheMemoryOfTheSlots) {
  // An embedding and a head, a tied head, and an embedding alone.
  for (const step::TableUnits turns : {step::TableUnits{0, 1}, {0, 0}, {0, std::nullopt}}) {
    for (const std::int64_t passes : {1, 2, 5}) {
      SCOPED_TRACE(format("head {}, {} passes", turns.head.value_or(9), passes));
      Blocks b(4, turns);
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

TEST(StreamedBlocks, AllBlocksComeTogether) {
  Blocks b(3);
  const std::vector<SlotPart> parts(b.slots.parts().begin(), b.slots.parts().begin() + 3);
  std::vector<std::uint64_t> seen;
  b.streamed->open();
  throw_if_error(b.streamed->gather(parts));
  for (std::size_t i = 0; i < 3; ++i) seen.push_back(b.slots.words(i).front());
  throw_if_error(b.streamed->close());
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{100, 101, 102}));
  EXPECT_EQ(of(value_or_throw(b.streamed->take_use()), Kind::kWeights).to_device,
            bytes_of(b.kWords) * 3);
}

TEST(StreamedBlocks, EveryDeviceCallMayFail) {
  int failed = 0;
  for (std::uint64_t k = 1;; ++k) {
    SCOPED_TRACE(format("call {}", k));
    Blocks b(4, {0, 1});
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

}  // namespace
}  // namespace neap::bridge
