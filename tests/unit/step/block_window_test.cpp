#include "step/units/block_window.h"

#include <gtest/gtest.h>

#include <random>

namespace neap::step {
namespace {

// What a user of the window does, with the slots' real contents.
class Model {
 public:
  Model(std::size_t blocks, std::size_t slots, Breaks breaks = {})
      : window_(blocks, slots, {}, breaks), contents_(slots) {}

  void expect(Sweep sweep, std::int64_t passes) {
    then_.reset();
    window_.expect(sweep, passes);
    bring_expected();
  }
  void expect(Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) {
    then_.reset();
    window_.expect(sweep, passes, chunk);
    bring_expected();
  }
  void use(std::size_t block) {
    const BlockWindow::Use use = window_.use(block);
    if (use.missing.any()) {
      ++missed;
      then_.reset();
      bring(use.missing);
    }
    ASSERT_EQ(contents_[use.missing.slot], block);
    used_ = use.missing.slot;
  }
  void release(std::size_t block) {
    ASSERT_EQ(contents_[*used_], block);
    used_.reset();
    EXPECT_FALSE(window_.release(block).any());
    bring_expected();
  }
  void pass(const std::vector<std::size_t>& blocks) {
    for (const std::size_t block : blocks) {
      use(block);
      release(block);
    }
  }
  void clear() {
    then_.reset();
    window_.clear();
    contents_.assign(contents_.size(), std::nullopt);
    bring_expected();
  }
  void forget() {
    window_.forget();
    contents_.assign(contents_.size(), std::nullopt);
    then_.reset();
  }
  int missed = 0, brought = 0, foreseen = 0;

 private:
  void bring(BlockWindow::Place place) {
    EXPECT_NE(used_, place.slot) << "the slot is in use";
    contents_[place.slot] = place.block;
    ++brought;
  }
  void bring_expected() {
    while (const auto place = window_.next_to_bring()) {
      if (then_) {
        EXPECT_EQ(place->block, *then_) << "it was to be another one";
        ++foreseen;
      }
      bring(*place);
      then_ = window_.brought_then();
    }
  }
  BlockWindow window_;
  std::vector<std::optional<std::size_t>> contents_;
  std::optional<std::size_t> used_;
  std::optional<std::size_t> then_;  // what is brought next
};

std::vector<std::size_t> order_of(Sweep sweep, std::size_t blocks) {
  std::vector<std::size_t> out;
  if (sweep != Sweep::kBackward)
    for (std::size_t i = 0; i < blocks; ++i) out.push_back(i);
  if (sweep != Sweep::kForward)
    for (std::size_t i = blocks; i-- > 0;) out.push_back(i);
  return out;
}

TEST(BlockWindow, BringsNothingBeforeTheFirstTurn) {
  for (const std::size_t blocks : {2u, 3u, 6u}) {
    Model model(blocks, 2, {.at_start = true, .after_forward = true, .after_backward = true});
    int brought = 0;
    for (const Sweep sweep : {Sweep::kForward, Sweep::kForwardBackward}) {
      model.forget();
      model.expect(sweep, 2);
      for (int pass = 0; pass < 2; ++pass) {
        EXPECT_EQ(model.brought, brought) << "a table takes the memory first";
        model.clear();  // the embedding's turn
        model.pass(order_of(Sweep::kForward, blocks));
        EXPECT_EQ(model.brought, brought += static_cast<int>(blocks));
        if (sweep == Sweep::kForward) continue;
        model.clear();  // the head's
        for (std::size_t i = blocks; i-- > 0;) model.pass({i});
        EXPECT_EQ(model.brought, brought += static_cast<int>(blocks));
      }
    }
    EXPECT_EQ(model.missed, 0);
  }
}

// Of a stage without a head.
TEST(BlockWindow, BringsNothingBeforeTheFirstTurnOfTheNextPass) {
  Model model(6, 2, {.at_start = true});
  model.expect(Sweep::kForward, 3);
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT_EQ(model.brought, 6 * pass);
    model.clear();
    model.pass(order_of(Sweep::kForward, 6));
  }
  EXPECT_EQ(model.missed, 0);
}

TEST(BlockWindow, BringsEachBlockOnceAForwardPassBeforeItIsUsed) {
  for (const std::size_t blocks : {3u, 4u, 7u}) {
    Model model(blocks, 2);
    model.expect(Sweep::kForward, 3);
    for (int pass = 0; pass < 3; ++pass) model.pass(order_of(Sweep::kForward, blocks));
    EXPECT_EQ(model.missed, 0);
    EXPECT_EQ(model.brought, static_cast<int>(3 * blocks)) << "nothing behind the last pass";
    EXPECT_EQ(model.foreseen, model.brought - 1);
  }
}

TEST(BlockWindow, EachPassOfAStageIsExpectedForItself) {
  for (const std::size_t blocks : {1u, 2u, 3u, 6u}) {
    for (const Breaks breaks :
         {Breaks{}, {true, false, true}, {false, true, false}, {true, true, true}}) {
      Model model(blocks, 2, breaks);
      int brought = 0;
      for (const Sweep sweep : {Sweep::kForward, Sweep::kForward, Sweep::kBackward, Sweep::kForward,
                                Sweep::kBackward, Sweep::kBackward}) {
        model.forget();
        model.expect(sweep, 1);
        if (sweep == Sweep::kForward ? breaks.at_start : breaks.after_forward) {
          EXPECT_EQ(model.brought, brought) << "a table takes the memory first";
          model.clear();
        }
        EXPECT_GT(model.brought, brought) << "the first block comes before it is used";
        model.pass(order_of(sweep, blocks));
        EXPECT_EQ(model.brought, brought += static_cast<int>(blocks));
      }
      EXPECT_EQ(model.missed, 0);
    }
  }
}

// Blocks 0 and 1, 2 to 4, and 5, of which the first follow an embedding and the last come before a head.
TEST(BlockWindow, AChunksPassBringsItsBlocksOnly) {
  const std::vector<spec::BlockChunk> chunks = {
      {{0, 2}, true, false}, {{2, 3}, false, false}, {{5, 1}, false, true}};
  Model model(6, 2, {.at_start = true, .after_forward = true, .after_backward = true});
  int brought = 0;
  for (const auto& [c, sweep] : {std::pair{0, Sweep::kForward},
                                 {1, Sweep::kForward},
                                 {2, Sweep::kForward},
                                 {2, Sweep::kBackward},
                                 {0, Sweep::kForward},
                                 {1, Sweep::kBackward},
                                 {0, Sweep::kBackward},
                                 {2, Sweep::kForward}}) {
    const spec::BlockChunk& chunk = chunks[static_cast<std::size_t>(c)];
    model.forget();
    model.expect(sweep, 1, chunk);
    if (sweep == Sweep::kForward ? chunk.embeds : chunk.has_head) {
      EXPECT_EQ(model.brought, brought) << "a table takes the memory first";
      model.clear();
    }
    EXPECT_GT(model.brought, brought) << "the first block comes before it is used";
    std::vector<std::size_t> order;
    for (const std::size_t i : order_of(sweep, static_cast<std::size_t>(chunk.blocks.count)))
      order.push_back(static_cast<std::size_t>(chunk.blocks.first) + i);
    model.pass(order);
    EXPECT_EQ(model.brought, brought += static_cast<int>(chunk.blocks.count));
  }
  EXPECT_EQ(model.missed, 0);
}

TEST(BlockWindow, KeepsWhatTheWayBackNeedsFirst) {
  Model model(5, 2);
  model.expect(Sweep::kForwardBackward, 2);
  for (int pass = 0; pass < 2; ++pass) model.pass(order_of(Sweep::kForwardBackward, 5));
  EXPECT_EQ(model.missed, 0);
  EXPECT_EQ(model.brought, 5 + 3 + 3 + 3);
}

TEST(BlockWindow, AModelThatFitsStays) {
  Model model(2, 3);
  model.expect(Sweep::kForwardBackward, 4);
  for (int pass = 0; pass < 4; ++pass) model.pass(order_of(Sweep::kForwardBackward, 2));
  EXPECT_EQ(model.missed, 0);
  EXPECT_EQ(model.brought, 2);
}

TEST(BlockWindow, UnexpectedUsesAreServed) {
  Model model(4, 2);
  model.pass({2, 0, 2, 3});
  EXPECT_EQ(model.missed, 3);
  EXPECT_EQ(model.brought, 3);
  model.forget();
  model.expect(Sweep::kForward, 1);
  model.pass({0, 2, 3, 1});  // it stops guessing
  EXPECT_LE(model.brought, 3 + 2 + 3);
}

TEST(BlockWindow, BringsNothingThatABreakWouldLose) {
  for (const Breaks breaks :
       {Breaks{false, true, true}, {false, true, false}, {false, false, true}}) {
    Model model(5, 2, breaks);
    model.expect(Sweep::kForwardBackward, 3);
    for (int pass = 0; pass < 3; ++pass) {
      model.pass({0, 1, 2, 3, 4});
      if (breaks.after_forward) model.clear();
      model.pass({4, 3, 2, 1, 0});
      if (breaks.after_backward) model.clear();
    }
    EXPECT_EQ(model.missed, 0);
    // A half pass brings all blocks after a break, else those that are not there yet.
    const int half = (breaks.after_forward ? 5 : 3), next = (breaks.after_backward ? 5 : 3);
    EXPECT_EQ(model.brought, 5 + 3 * half + 2 * next);
  }
}

// Inputs and gradients in slots and on the host, by the pass that they are of.
class Contents {
 public:
  Contents(std::size_t blocks, std::size_t slots, WithBlocks with, Breaks breaks)
      : with_(with),
        breaks_(breaks),
        window_(blocks, slots, with, breaks),
        slots_(slots),
        host_(blocks) {}

  void run(std::int64_t passes) {
    window_.forget();
    window_.expect(Sweep::kForwardBackward, passes);
    for (Of& block : host_) block.gradients = -1;
    for (std::int64_t pass = 0; pass < passes; ++pass) {
      for (std::size_t b = 0; b < host_.size(); ++b) visit(b, BlockUse::kKeepInputs, pass);
      if (breaks_.after_forward) clear();
      for (std::size_t b = host_.size(); b-- > 0;) visit(b, BlockUse::kAddGradients, pass);
      if (breaks_.after_backward) clear();
    }
    if (!with_.gradients) return;
    for (const Of& block : host_) EXPECT_EQ(block.gradients, passes - 1);
  }
  int inputs_brought = 0;

 private:
  struct Of {
    std::int64_t inputs = -1, gradients = -1;
  };
  void visit(std::size_t block, BlockUse how, std::int64_t pass) {
    const BlockWindow::Use use = window_.use(block, how);
    bring(use.missing);
    Of& slot = slots_[use.missing.slot];
    if (how == BlockUse::kKeepInputs) {
      slot.inputs = pass;
    } else {
      if (with_.inputs) {
        ASSERT_EQ(slot.inputs, pass) << block;
      }
      if (with_.gradients) {
        ASSERT_EQ(use.zero, pass == 0);
        if (!use.zero) {
          ASSERT_EQ(slot.gradients, pass - 1) << block;
        }
        slot.gradients = pass;
      }
    }
    const BlockWindow::Leaving leaving = window_.release(block);
    if (leaving.inputs) host_[block].inputs = slot.inputs;
    if (leaving.gradients) host_[block].gradients = slot.gradients;
    while (const auto place = window_.next_to_bring()) bring(*place);
  }
  void bring(BlockWindow::Place place) {
    if (place.weights) slots_[place.slot] = {};
    if (place.gradients) slots_[place.slot].gradients = host_[place.block].gradients;
    if (place.inputs) slots_[place.slot].inputs = host_[place.block].inputs;
    inputs_brought += place.inputs;
  }
  void clear() {
    window_.clear();
    slots_.assign(slots_.size(), {});
    while (const auto place = window_.next_to_bring()) bring(*place);
  }
  WithBlocks with_;
  Breaks breaks_;
  BlockWindow window_;
  std::vector<Of> slots_, host_;
};

TEST(BlockWindow, InputsAndGradientsComeForTheWayBack) {
  for (const std::size_t blocks : {2u, 3u, 4u, 9u}) {
    for (const std::size_t slots : {2u, 3u}) {
      for (const WithBlocks with : {WithBlocks{true, true}, {false, true}, {true, false}}) {
        for (const Breaks breaks :
             {Breaks{}, {false, true, true}, {false, true, false}, {false, false, true}}) {
          Contents contents(blocks, slots, with, breaks);
          for (const std::int64_t passes : {1, 2, 5}) {
            contents.inputs_brought = 0;
            ASSERT_NO_FATAL_FAILURE(contents.run(passes));
            // What is in a slot at the turn is not brought.
            const auto stay = breaks.after_forward ? 0 : std::min(blocks, slots);
            const auto brought = static_cast<int>(blocks - stay) * static_cast<int>(passes);
            EXPECT_EQ(contents.inputs_brought, with.inputs ? brought : 0);
          }
        }
      }
    }
  }
}

// Gradients that the first part of a backward leaves have their memory in the slot of then.
TEST(BlockWindow, ABlockHasOneSlotInBothPartsOfABackward) {
  std::mt19937 random(11);
  for (const std::size_t blocks : {2u, 3u, 4u, 5u, 6u, 9u}) {
    for (const Breaks breaks : {Breaks{}, {false, true, false}, {false, true, true}}) {
      SCOPED_TRACE(blocks);
      constexpr std::int64_t kMicroBatches = 6;
      const spec::BlockChunk chunk{{0, static_cast<std::int64_t>(blocks)}, true, true};
      BlockWindow window(blocks, 2, {true, false}, breaks);
      const auto bring_expected = [&] {
        while (window.next_to_bring()) continue;
      };
      const auto turn = [&] {
        window.clear();
        bring_expected();
      };
      const auto pass = [&](Sweep sweep, BlockUse how) {
        std::vector<std::size_t> slots(blocks);
        window.expect(sweep, 1, chunk);
        bring_expected();
        if (sweep == Sweep::kBackwardInput && breaks.after_forward) turn();
        for (std::size_t i = 0; i < blocks; ++i) {
          const std::size_t block = sweep == Sweep::kForward ? i : blocks - 1 - i;
          slots[block] = window.use(block, how).missing.slot;
          (void)window.release(block);
          bring_expected();
        }
        if (sweep == Sweep::kBackwardInput && breaks.after_backward) turn();
        return slots;
      };
      window.begin_mini_batch(kMicroBatches);
      std::int64_t forward = 0, back = 0, later = 0;
      std::vector<std::vector<std::size_t>> first;  // part's slots, by micro-batch
      while (later < kMicroBatches) {
        const auto choice = random() % 3;
        if (choice == 0 && forward < kMicroBatches) {
          (void)pass(Sweep::kForward, BlockUse::kKeepInputs);
          ++forward;
        } else if (choice == 1 && back < forward) {
          first.push_back(pass(Sweep::kBackwardInput, BlockUse::kReadBack));
          ++back;
        } else if (choice == 2 && later < back) {
          ASSERT_EQ(pass(Sweep::kBackwardWeights, BlockUse::kAddLater),
                    first[static_cast<std::size_t>(later)]);
          ++later;
        }
      }
    }
  }
}

TEST(BlockWindow, RandomPasses) {
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return random() % n; };
  for (int round = 0; round < 500; ++round) {
    const std::size_t blocks = 1 + below(9);
    Model model(blocks, 2 + below(3));
    for (std::size_t phase = 0; phase < 3; ++phase) {
      const Sweep sweep = below(2) == 0 ? Sweep::kForward : Sweep::kForwardBackward;
      const auto passes = static_cast<std::int64_t>(1 + below(3));
      if (below(4) != 0) model.expect(sweep, passes);
      for (std::int64_t pass = 0; pass < passes; ++pass) {
        std::vector<std::size_t> order = order_of(sweep, blocks);
        if (below(3) == 0) order.resize(1 + below(order.size()));  // a failure ends the pass
        model.pass(order);
        if (HasFatalFailure()) return;
      }
      if (below(2) == 0) model.forget();
    }
  }
}

}  // namespace
}  // namespace neap::step
