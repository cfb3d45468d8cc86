#include <gtest/gtest.h>

#include "base/utf8.h"
#include "trace/reader.h"

namespace neap::trace {
namespace {

/// Assembles pickles by hand: what no pickler would write.
class Pickle {
 public:
  Pickle() { raw("\x80\x04"); }
  Pickle& raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  Pickle& byte(int b) {
    bytes_ += static_cast<char>(b);
    return *this;
  }
  Pickle& text(std::string_view s) {
    byte(0x8C).byte(static_cast<int>(s.size()));
    return raw(s);
  }
  Pickle& integer(std::uint64_t n) {
    byte(0x8A).byte(8);
    for (int i = 0; i < 8; ++i) byte(static_cast<int>(n >> (8 * i) & 0xFF));
    return *this;
  }
  [[nodiscard]] Result<Recording> read(const ReadOptions& options = {}) const {
    return read_bytes({reinterpret_cast<const std::uint8_t*>(bytes_.data()), bytes_.size()},
                      "test.pickle", options);
  }
  [[nodiscard]] std::string error() const {
    const auto result = read();
    EXPECT_FALSE(result.ok());
    return result.status().message();
  }

 private:
  std::string bytes_;
};

/// {"segments": [], "device_traces": [[ ...events... ]]} around what `fill` writes.
template <class Fill>
Pickle with_events(Fill fill) {
  Pickle p;
  p.raw("}(").text("segments").raw("]").text("device_traces").raw("](](");
  fill(p);
  return p.raw("eeu.");
}

TEST(Snapshot, ReadsOneEvent) {
  const auto r = with_events([](Pickle& p) {
                   p.raw("}(").text("action").text("alloc").text("addr").integer(0x7F0000000000);
                   p.text("size").integer(4096).text("stream").raw("K\x07");
                   p.text("time_us").integer(1000).text("something new").raw("N").raw("u");
                 }).read();
  ASSERT_TRUE(r.ok()) << r.status().message();
  ASSERT_EQ(r->event_count(), 1U);
  const Event& e = r->devices[0].events[0];
  EXPECT_EQ(e.address, 0x7F0000000000U);
  EXPECT_EQ(e.size, 4096U);
  EXPECT_EQ(e.stream, 7U);
  EXPECT_EQ(e.time_ns, 0U) << "times count from the first";
  EXPECT_EQ(r->start_unix_ns, 1'000'000U);
}

TEST(Snapshot, NothingIsExecuted) {
  const std::string message =
      Pickle().raw("cos\nsystem\n(").text("touch /tmp/owned").raw("tR.").error();
  EXPECT_NE(message.find("nothing was executed"), std::string::npos) << message;
  EXPECT_NE(message.find("byte 2"), std::string::npos) << message;
  EXPECT_NE(Pickle().text("os").text("system").byte(0x93).raw(".").error().find("import or call"),
            std::string::npos);
}

TEST(Snapshot, SelfReferenceIsAnErrorNotALoop) {
  EXPECT_NE(Pickle().raw("]\x94h").byte(0).raw("a.").error().find("contains itself"),
            std::string::npos);
  EXPECT_NE(Pickle().raw("}\x94").text("a").raw("h").byte(0).raw("s.").error().find("itself"),
            std::string::npos);
}

TEST(Snapshot, GiganticLengthsEndAtTheEndOfTheFile) {
  EXPECT_NE(Pickle().byte(0x8D).raw("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F").error().find("cut short"),
            std::string::npos);
  EXPECT_NE(Pickle().raw("X\xFF\xFF\xFF\x7Fxx").error().find("cut short"), std::string::npos);
  EXPECT_NE(Pickle().byte(0x8B).raw("\xFF\xFF\xFF\x7F").error().find("cut short"),
            std::string::npos);
  EXPECT_NE(Pickle().byte(0x8B).raw("\xFF\xFF\xFF\xFF").error().find("negative length"),
            std::string::npos);
  EXPECT_NE(Pickle().raw("]r\xFF\xFF\xFF\xFF.").error().find("memo entry 4294967295"),
            std::string::npos);
}

TEST(Snapshot, DeepNestingTakesNoStack) {
  Pickle p;
  for (int i = 0; i < 3'000'000; ++i) p.raw("]");
  for (int i = 0; i < 2'999'999; ++i) p.raw("a");
  const auto r = p.raw(".").read();
  EXPECT_FALSE(r.ok());
  EXPECT_NE(r.status().message().find("another kind"), std::string::npos) << r.status().message();
  Pickle marks;
  for (int i = 0; i < 3'000'000; ++i) marks.raw("(");
  EXPECT_FALSE(marks.read().ok());
}

TEST(Snapshot, SharedListsDoNotMultiply) {
  // A list of one event, shared by 60000 devices.
  Pickle p;
  p.raw("}(").text("device_traces").raw("](](");
  p.raw("}(").text("action").text("alloc").text("addr").raw("K\x01").text("size").raw("K\x01u");
  p.raw("e\x94");
  for (int i = 0; i < 60000; ++i) p.raw("h").byte(0);
  EXPECT_NE(p.raw("eu.").error().find("share"), std::string::npos);
}

TEST(Snapshot, StackUnderflowsAndStrayMarksAreErrors) {
  for (const std::string_view bad : {"a.", "s.", "u.", "e.", "t.", "0.", "1.", "2.", "q\x01.", ".",
                                     "(a.", "(e.", "](u.", "}(Ku.", "h\x05.", "\x85."}) {
    const auto r = Pickle().raw(bad).read();
    EXPECT_FALSE(r.ok()) << bad;
    EXPECT_NE(r.status().message().find("at byte"), std::string::npos) << r.status().message();
  }
}

TEST(Snapshot, ConfusedTypesNameTheKeyAndTheValue) {
  const auto event = [](auto fill) {
    return with_events([&](Pickle& p) {
             p.raw("}(").text("action").text("alloc");
             fill(p);
             p.raw("u");
           })
        .error();
  };
  EXPECT_NE(event([](Pickle& p) { p.text("addr").text("high"); }).find("\"addr\" is \"high\""),
            std::string::npos);
  const std::string long_text =
      event([](Pickle& p) { p.text("addr").text(std::string(39, 'x') + "\xc3\xa9t\xc3\xa9"); });
  EXPECT_NE(long_text.find("xx...\""), std::string::npos) << long_text;
  EXPECT_TRUE(is_utf8(long_text));
  EXPECT_NE(event([](Pickle& p) {
              p.text("addr").raw("K\x01").text("size").raw("J\xFE\xFF\xFF\xFF");
            }).find("\"size\" is -2"),
            std::string::npos);
  EXPECT_NE(event([](Pickle& p) { p.text("addr").raw("K\x01"); }).find("without \"size\""),
            std::string::npos);
  EXPECT_NE(event([](Pickle& p) {
              p.text("frames").raw("N").text("addr").raw("}");
            }).find("\"addr\" is a dict"),
            std::string::npos);
  EXPECT_NE(Pickle().raw("}").text("segments").raw("K\x01s.").error().find("not a list"),
            std::string::npos);
  EXPECT_NE(Pickle()
                .raw("}")
                .text("device_traces")
                .raw("](K\x01"
                     "es.")
                .error()
                .find("not a list"),
            std::string::npos);
  EXPECT_NE(Pickle().raw("K\x01.").error().find("not a memory snapshot"), std::string::npos);
  EXPECT_NE(Pickle().raw("}.").error().find("not a memory snapshot"), std::string::npos);
}

TEST(Snapshot, MemoryLimitStopsTheMachine) {
  Pickle p;
  for (int i = 0; i < 4'000'000; ++i) p.raw("}");
  const auto r = p.raw(".").read({.memory_limit = 16_MiB});
  EXPECT_EQ(r.status().code(), ErrorCode::kOutOfHostMemory) << r.status().message();
}

TEST(Snapshot, OldAndNewerProtocols) {
  const std::uint8_t newer[] = {0x80, 0x06, '.'};
  const auto r = read_bytes(newer, "new.pickle");
  EXPECT_EQ(r.status().code(), ErrorCode::kUnsupported);
  EXPECT_NE(r.status().message().find("protocol 6"), std::string::npos);
}

}  // namespace
}  // namespace neap::trace
