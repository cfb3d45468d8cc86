#include <gtest/gtest.h>

#include "trace/recording.h"

namespace neap::trace {
namespace {

TEST(NameTable, GivesOneIdToOneName) {
  NameTable table;
  EXPECT_EQ(table.intern(""), 0U);
  const std::uint32_t generate = table.intern("phase:generate");
  EXPECT_EQ(table.intern("phase:train"), generate + 1);
  for (int i = 0; i < 10000; ++i) (void)table.intern("n" + std::to_string(i));
  EXPECT_EQ(table.intern("phase:generate"), generate) << "survives growth";
  EXPECT_EQ(table.name(generate), "phase:generate");
  EXPECT_EQ(table.find("n9999"), table.intern("n9999"));
  EXPECT_EQ(table.find("never seen"), 0U);
  EXPECT_EQ(table.name(1u << 30), "") << "unknown ids are empty, not a crash";
  EXPECT_EQ(table.size(), 10003U);
}

TEST(NameTable, CopiesStandAlone) {
  NameTable a;
  (void)a.intern("one");
  NameTable b = a;
  (void)b.intern("two");
  EXPECT_EQ(a.size(), 2U);
  EXPECT_EQ(b.find("one"), a.find("one"));
}

TEST(StackTable, KeepsStacksApart) {
  StackTable stacks;
  const std::uint32_t f = stacks.add_frame({1, 2, 10});
  const std::uint32_t g = stacks.add_frame({3, 2, 20});
  const std::uint32_t both = stacks.add_stack(std::vector{f, g});
  const std::uint32_t one = stacks.add_stack(std::vector{g});
  EXPECT_EQ(both, 1U);
  ASSERT_EQ(stacks.stack(both).size(), 2U);
  EXPECT_EQ(stacks.frame(stacks.stack(one)[0]).line, 20U);
  EXPECT_TRUE(stacks.stack(0).empty());
  EXPECT_TRUE(stacks.stack(77).empty());
}

}  // namespace
}  // namespace neap::trace
