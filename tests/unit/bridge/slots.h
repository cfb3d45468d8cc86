// Slots on a device that may fail, and blocks with gradients, inputs and tables that come to them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "bridge/streamed_blocks.h"
#include "device/fault/fault_device.h"
#include "unit/bridge/shadow.h"

namespace neap::bridge {

using Kind = step::StreamedKind;
using Words = std::span<std::uint64_t>;

inline const LinkUse& of(const LinkUses& uses, Kind kind) {
  return uses[index_of(kind)];
}

inline Words words_of(const arena::HostStorage& storage) {
  return {reinterpret_cast<std::uint64_t*>(storage.data()), storage.size().count() / 8};
}
inline Bytes bytes_of(std::size_t words) {
  return Bytes(words * 8);
}

// A device that may fail, and one region of slots.
class Slots {
 public:
  /// `folder`: of what rests on disk.
  Slots(std::size_t count, std::size_t words, const std::string& folder = {})
      : real_(host_device(64_MiB)), fault_(device::make_fault_device(*real_)), words_(words) {
    arena::Options options;
    options.touch_threads = 1;
    options.disk_folder = folder;
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

/// Where blocks rest: on the host, on disk, or on disk with weights in a file of somebody else.
enum class Rests : std::uint8_t { kHost, kDisk, kFiles };

struct Blocks {
  explicit Blocks(std::size_t count, const step::TableUnits& turns = {}, Rests where = Rests::kHost,
                  const std::string& folder = {})
      : blocks(count), turns_of(turns), rests(where), slots(3 * kSlots, kWords, folder) {
    std::vector<StreamedBlocks::Slot> places;
    for (std::size_t i = 0; i < kSlots; ++i)
      places.push_back(
          {slots.parts()[i], slots.parts()[kSlots + i], slots.parts()[2 * kSlots + i]});
    const Bytes bytes = bytes_of(kWords);
    streamed.emplace(slots.arena(), device::StreamId::kDefault, "blocks", places,
                     std::vector<StreamedBlocks::UnitBytes>(blocks, {"", bytes, bytes, bytes}),
                     tables(),
                     rests == Rests::kHost    ? StreamedBlocks::OnDisk{}
                     : rests == Rests::kFiles ? StreamedBlocks::OnDisk{4 * bytes, bytes, true}
                                              : StreamedBlocks::OnDisk{bytes, bytes, false});
    for (const char* name : {"embed", "head"}) {
      if (streamed->table(name) == nullptr) continue;
      if (rests != Rests::kFiles)
        std::ranges::fill(words_of(*streamed->table(name)->weights), kTable);
      std::ranges::fill(words_of(*streamed->table(name)->gradients), 7777);
    }
    if (rests == Rests::kFiles) write_file();
    for (std::size_t b = 0; b < blocks; ++b) {
      if (rests != Rests::kFiles) std::fill(weights(b).begin(), weights(b).end(), 100 + b);
      std::fill(gradients(b).begin(), gradients(b).end(), 7777);  // of a mini-batch before
    }
  }
  [[nodiscard]] Words weights(std::size_t b) const {
    return words_at(streamed->block(b).resting_weights());
  }
  [[nodiscard]] Words gradients(std::size_t b) const {
    return words_at(streamed->block(b).resting_gradients());
  }
  /// The second half of each block before its first one, and neither where a page or a word begins; tables in three pieces.
  /// The file has lost its name, and stays open.
  void write_file() {
    std::string name = ::testing::TempDir() + "neap-weights-XXXXXX";
    descriptor = Descriptor(::mkstemp(name.data()));
    std::string bytes = "12345";
    std::vector<FileUnit> units(blocks);
    const Bytes half = bytes_of(kWords / 2);
    for (std::size_t b = 0; b < blocks; ++b) {
      const std::vector<std::uint64_t> words(kWords, 100 + b);
      const Bytes at(bytes.size());
      bytes.append(reinterpret_cast<const char*>(words.data()), 8 * kWords);
      units[b].parts = {{nullptr, at, half, half}, {nullptr, at + half, half, Bytes()}};
    }
    const std::vector<std::uint64_t> table(kSlots * kWords, kTable);
    const Bytes at(bytes.size());
    bytes.append(reinterpret_cast<const char*>(table.data()), 8 * table.size());
    FileUnit in_pieces;
    const Bytes pieces[] = {Bytes(), 1000_B, 5001_B, bytes_of(table.size())};
    for (std::size_t i = 0; i < 3; ++i)
      in_pieces.parts.push_back({nullptr, at + pieces[i], pieces[i + 1] - pieces[i], pieces[i]});
    std::vector<FileUnit> tables(2, in_pieces);
    ASSERT_EQ(::pwrite(descriptor.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    ASSERT_EQ(::unlink(name.c_str()), 0);
    const std::shared_ptr<const arena::DiskFile> file =
        value_or_throw(arena::DiskFile::of_other(descriptor.get(), "model.safetensors"));
    for (auto* list : {&units, &tables})
      for (FileUnit& unit : *list)
        for (FileUnit::Part& part : unit.parts) part.file = file.get();
    throw_if_error(streamed->read_from(units, tables, {file}));
  }
  static Words words_at(const Resting& at) {
    return {reinterpret_cast<std::uint64_t*>(at.data()), kWords};
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
            StreamedBlocks::Slot{SlotPart{"weights.table", first.region, Bytes()}, gradients}};
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
    throw_if_error(streamed->open());
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
  Rests rests;
  Descriptor descriptor;  ///< of the file
  Slots slots;
  std::optional<StreamedBlocks> streamed;
  std::size_t completed = 0, completed_tables = 0;
};

}  // namespace neap::bridge
