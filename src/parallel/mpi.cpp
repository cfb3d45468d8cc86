#include "parallel/mpi.h"

#include <ATen/ATen.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>

#include "base/format.h"
#include "base/installation.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "parallel/timeouts.h"

namespace neap::parallel {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
constexpr const char* kLibrary = "libneap_mpi.so";

// out = in[0] op in[1] op ..., in this order; `in` holds `ranks` rows of `n`.
template <class T, class Sum>
void reduce_rows(T* out, const T* in, std::int64_t n, int ranks, Reduce op) {
  for (std::int64_t i = 0; i < n; ++i) {
    Sum value = static_cast<Sum>(in[i]);
    for (int r = 1; r < ranks; ++r) {
      const auto next = static_cast<Sum>(in[r * n + i]);
      value = op == Reduce::kMax ? std::max(value, next) : static_cast<Sum>(value + next);
    }
    out[i] = static_cast<T>(value);
  }
}

void reduce_rows(at::ScalarType type, void* out, const void* in, std::int64_t n, int ranks,
                 Reduce op) {
  const auto run = [&]<class T, class Sum>(T*, Sum) {
    reduce_rows<T, Sum>(static_cast<T*>(out), static_cast<const T*>(in), n, ranks, op);
  };
  switch (type) {
    case at::kFloat:
      return run(static_cast<float*>(nullptr), float{});
    case at::kDouble:
      return run(static_cast<double*>(nullptr), double{});
    case at::kBFloat16:
      return run(static_cast<at::BFloat16*>(nullptr), float{});
    case at::kHalf:
      return run(static_cast<at::Half*>(nullptr), float{});
    case at::kLong:
      return run(static_cast<std::int64_t*>(nullptr), std::int64_t{});
    case at::kInt:
      return run(static_cast<std::int32_t*>(nullptr), std::int32_t{});
    default:
      return run(static_cast<std::uint8_t*>(nullptr), std::uint8_t{});
  }
}

class Mpi final : public Communicator {
 public:
  Mpi(const NeapMpi& mpi, int rank, int size, std::int64_t piece_bytes, double timeout_seconds)
      : Communicator(rank, size),
        mpi_(mpi),
        all_(
            std::make_shared<All>(All{rank, size, timeout_seconds, LifePace(timeout_seconds), {}})),
        piece_bytes_(piece_bytes),
        exceptions_(std::uncaught_exceptions()) {}
  // A group of some of the ranks.
  Mpi(const Mpi& whole, int rank, int size, int group)
      : Communicator(rank, size),
        mpi_(whole.mpi_),
        all_(whole.all_),
        group_(group),
        piece_bytes_(whole.piece_bytes_),
        exceptions_(std::uncaught_exceptions()) {}

  ~Mpi() override {
    // While an exception is in flight, MPI's shutdown could block: the others may wait for this
    // rank.
    if (group_ == 0 && !aborted_ && all_->failure.ok() && std::uncaught_exceptions() == exceptions_)
      end();
  }

  [[nodiscard]] std::string name() const override { return "mpi"; }

  void abort(int exit_code) noexcept override {
    aborted_ = true;
    mpi_.abort(exit_code);
  }

  void show_life() override {
    if (!all_->failure.ok() || !all_->pace.due()) return;
    call("show_life", [&] { return mpi_.show_life(); });
  }

 private:
  // State that all groups share.
  struct All {
    int rank, size;
    double timeout_seconds;
    LifePace pace;
    Status failure;  // of the first call that failed
  };

  // `function` calls MPI and returns its error code.
  template <class Function>
  void call(const char* what, const Function& function) const {
    if (all_->failure.ok()) {
      const int error = function();
      if (error == 0) return;
      all_->failure = error == NEAP_MPI_TIMED_OUT ? timed_out(what) : failed(what, error);
    }
    throw Error(all_->failure);
  }
  // If a rank never reaches the end, this one and the launcher would wait for it.
  void end() noexcept {
    try {
      call("finish", [&] { return mpi_.finish(); });
    } catch (const Error& e) {
      log::error(e.what());
      mpi_.abort(1);
    }
  }
  [[nodiscard]] Status failed(const char* what, int error) const {
    char words[512];
    mpi_.describe(error, words, sizeof words);
    return {ErrorCode::kIo, format("MPI failed in {} on rank {}: {}", what, all_->rank, words)};
  }
  [[nodiscard]] Status timed_out(const char* what) const {
    std::vector<char> missing(static_cast<std::size_t>(all_->size));
    mpi_.missing(missing.data());
    std::vector<std::int64_t> who;
    for (std::size_t r = 0; r < missing.size(); ++r)
      if (missing[r] != 0) who.push_back(static_cast<std::int64_t>(r));
    return wait_timed_out(all_->rank, all_->timeout_seconds, what, joined(who, ", "));
  }

  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  [[nodiscard]] std::size_t me() const { return static_cast<std::size_t>(rank()); }
  [[nodiscard]] static std::size_t size_of(int bytes) { return static_cast<std::size_t>(bytes); }

  // Elements of part r when `n` elements are divided into one part per rank.
  [[nodiscard]] std::int64_t part(std::int64_t n, int r) const {
    return n / size() + (r < n % size() ? 1 : 0);
  }

  std::byte* workspace(std::int64_t bytes, std::vector<std::byte>& buffer) {
    if (static_cast<std::int64_t>(buffer.size()) < bytes)
      buffer.resize(static_cast<std::size_t>(bytes));
    return buffer.data();
  }

  template <class Piece>
  void by_pieces(std::int64_t elements, std::int64_t element_bytes, const Piece& piece) {
    const std::int64_t most = std::max<std::int64_t>(1, piece_bytes_ / element_bytes);
    for (std::int64_t at = 0; at < elements; at += most) piece(at, std::min(most, elements - at));
  }

  void do_all_reduce(const at::Tensor& t, Reduce op) override {
    const auto width = static_cast<std::int64_t>(t.element_size());
    auto* const data = static_cast<std::byte*>(t.mutable_data_ptr());
    by_pieces(t.numel(), width, [&](std::int64_t at, std::int64_t n) {
      Counts parts(ranks());
      for (int r = 0; r < size(); ++r) parts[static_cast<std::size_t>(r)] = part(n, r);
      const Layout layout = layout_of(parts, width);
      std::byte* const piece = data + at * width;
      reduce_parts(t.scalar_type(), piece, layout, piece + layout.offsets[me()], op, "all_reduce");
      call("all_reduce", [&] {
        return mpi_.all_gather(group_, piece, layout.bytes.data(), layout.offsets.data());
      });
    });
  }

  // All ranks' parts advance in rounds of equal size. Each round gathers one piece of each part.
  void do_reduce_scatter(const at::Tensor& t, const Counts& counts) override {
    const auto width = static_cast<std::int64_t>(t.element_size());
    auto* const data = static_cast<std::byte*>(t.mutable_data_ptr());
    by_rounds(counts, width, [&](const Layout& layout, const std::vector<std::int64_t>& places) {
      std::byte* const sent = workspace(layout.sum(), sent_);
      for (std::size_t r = 0; r < ranks(); ++r)
        std::memcpy(sent + layout.offsets[r], data + places[r], size_of(layout.bytes[r]));
      reduce_parts(t.scalar_type(), sent, layout, data + places[me()], Reduce::kSum,
                   "reduce_scatter");
    });
  }

  void do_all_gather(const at::Tensor& t, const Counts& counts) override {
    const auto width = static_cast<std::int64_t>(t.element_size());
    auto* const data = static_cast<std::byte*>(t.mutable_data_ptr());
    by_rounds(counts, width, [&](const Layout& layout, const std::vector<std::int64_t>& places) {
      std::byte* const rows = workspace(layout.sum(), rows_);
      std::memcpy(rows + layout.offsets[me()], data + places[me()], size_of(layout.bytes[me()]));
      call("all_gather", [&] {
        return mpi_.all_gather(group_, rows, layout.bytes.data(), layout.offsets.data());
      });
      for (std::size_t r = 0; r < ranks(); ++r) {
        if (r != me())
          std::memcpy(data + places[r], rows + layout.offsets[r], size_of(layout.bytes[r]));
      }
    });
  }

  void do_broadcast(const at::Tensor& t, int root) override {
    const auto width = static_cast<std::int64_t>(t.element_size());
    auto* const data = static_cast<std::byte*>(t.mutable_data_ptr());
    by_pieces(t.numel(), width, [&](std::int64_t at, std::int64_t n) {
      call("broadcast", [&] {
        return mpi_.broadcast(group_, data + at * width, static_cast<int>(n * width), root);
      });
    });
  }

  void do_send(const at::Tensor& t, int to) override {
    const auto* const data = static_cast<const std::byte*>(t.const_data_ptr());
    by_pieces(static_cast<std::int64_t>(t.nbytes()), 1, [&](std::int64_t at, std::int64_t n) {
      call("send", [&] { return mpi_.send(group_, data + at, static_cast<int>(n), to); });
    });
  }
  void do_receive(const at::Tensor& t, int from) override {
    auto* const data = static_cast<std::byte*>(t.mutable_data_ptr());
    by_pieces(static_cast<std::int64_t>(t.nbytes()), 1, [&](std::int64_t at, std::int64_t n) {
      call("receive", [&] { return mpi_.receive(group_, data + at, static_cast<int>(n), from); });
    });
  }

  void do_barrier() override {
    call("barrier", [&] { return mpi_.barrier(group_); });
  }

  std::unique_ptr<Communicator> do_split(int color, int rank, int size) override {
    int made = 0;
    call("split", [&] { return mpi_.split(group_, color, &made); });
    return std::make_unique<Mpi>(*this, rank, size, made);
  }

  // The byte ranges of parts, one per rank, without gaps.
  struct Layout {
    std::vector<int> bytes, offsets;
    [[nodiscard]] std::int64_t sum() const { return offsets.back() + bytes.back(); }
  };
  [[nodiscard]] Layout layout_of(const Counts& parts, std::int64_t width) const {
    Layout layout{std::vector<int>(ranks()), std::vector<int>(ranks())};
    int offset = 0;
    for (std::size_t r = 0; r < ranks(); ++r) {
      layout.offsets[r] = offset;
      layout.bytes[r] = static_cast<int>(parts[r] * width);
      offset += layout.bytes[r];
    }
    return layout;
  }

  // `parts` has one part per rank. The reduction over ranks of this rank's part is written to
  // `out`.
  void reduce_parts(at::ScalarType type, const std::byte* parts, const Layout& layout,
                    std::byte* out, Reduce op, const char* what) {
    const auto width = static_cast<std::int64_t>(c10::elementSize(type));
    const int mine = layout.bytes[me()];
    const Layout in = layout_of(Counts(ranks(), mine / width), width);
    std::byte* const rows = workspace(in.sum(), rows_);
    call(what, [&] {
      return mpi_.all_to_all(group_, parts, layout.bytes.data(), layout.offsets.data(), rows,
                             in.bytes.data(), in.offsets.data());
    });
    reduce_rows(type, out, rows, mine / width, size(), op);
  }

  // Calls visit(bytes of each rank's next piece, their offsets) until all parts are done.
  template <class Visit>
  void by_rounds(const Counts& counts, std::int64_t width, const Visit& visit) {
    const std::int64_t longest = *std::max_element(counts.begin(), counts.end());
    by_pieces(longest, width * size(), [&](std::int64_t at, std::int64_t n) {
      Counts parts(ranks());
      std::vector<std::int64_t> places(ranks());
      for (int r = 0; r < size(); ++r) {
        const auto i = static_cast<std::size_t>(r);
        parts[i] = std::clamp<std::int64_t>(counts[i] - at, 0, n);
        places[i] = (first_of(counts, r) + std::min(at, counts[i])) * width;
      }
      visit(layout_of(parts, width), places);
    });
  }

  const NeapMpi& mpi_;
  std::shared_ptr<All> all_;
  int group_ = 0;  // number of the group
  std::int64_t piece_bytes_;
  int exceptions_;
  bool aborted_ = false;
  std::vector<std::byte> rows_, sent_;
};

const NeapMpi& load() {
  const auto found = find_library(kLibrary, nullptr);
  if (!found.ok()) {
    throw Error(ErrorCode::kUnsupported,
                format("This installation has no MPI: {}. Build with libopenmpi-dev installed and "
                       "NEAP_MPI on",
                       found.status().message()));
  }
  const fs::path& file = *found;
  // RTLD_GLOBAL, because MPI loads components that look up its symbols.
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw Error(ErrorCode::kUnsupported, format("{} does not load: {}. Is OpenMPI installed here?",
                                                file.string(), dlerror()));
  }
  void* const symbol = dlsym(library, NEAP_MPI_ENTRY);
  if (symbol == nullptr)
    throw Error(ErrorCode::kUnsupported, format("{} is not a plug-in of Neap", file.string()));
  const NeapMpi* const mpi = reinterpret_cast<NeapMpiEntry>(symbol)();
  if (mpi->abi != NEAP_MPI_ABI) {
    throw Error(ErrorCode::kUnsupported,
                format("{} is of another version of Neap (interface {}, {} "
                       "is wanted)",
                       file.string(), mpi->abi, NEAP_MPI_ABI));
  }
  return *mpi;
}

}  // namespace

std::unique_ptr<Communicator> make_mpi(const NeapMpi& mpi, int rank, int size,
                                       std::int64_t piece_bytes, double timeout_seconds) {
  return std::make_unique<Mpi>(mpi, rank, size, piece_bytes, timeout_seconds);
}

std::unique_ptr<Communicator> connect_mpi(const Environment& environment, double timeout_seconds) {
  const NeapMpi& mpi = load();
  int rank = 0, size = 1;
  if (mpi.start(timeout_seconds, &rank, &size) != 0)
    throw Error(ErrorCode::kIo, "MPI did not start (its own message is above)");
  if (rank != environment.rank || size != environment.size) {
    throw Error(
        ErrorCode::kInvalidArgument,
        format("{} says rank {} of {}, MPI says rank {} of {}: the launcher is not the one "
               "of the MPI that Neap was built with{}",
               to_string(environment.launcher), environment.rank, environment.size, rank, size,
               environment.launcher == Launcher::kSlurm
                   ? "; try srun --mpi=pmix, or mpirun inside the allocation"
                   : ""));
  }
  return make_mpi(mpi, rank, size, kPieceBytes, timeout_seconds);
}

}  // namespace neap::parallel
