#include "parallel/mpi.h"

#include <ATen/ATen.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>

#include "base/format.h"
#include "base/installation.h"
#include "base/status.h"

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
  Mpi(const NeapMpi& mpi, int rank, int size, std::int64_t piece_bytes)
      : Communicator(rank, size),
        mpi_(mpi),
        piece_bytes_(piece_bytes),
        exceptions_(std::uncaught_exceptions()) {}

  ~Mpi() override {
    // An exception under way: the others may wait for this rank, and MPI's end would wait for them.
    if (!aborted_ && std::uncaught_exceptions() == exceptions_) mpi_.finish();
  }

  [[nodiscard]] std::string name() const override { return "mpi"; }

  void abort(int exit_code) noexcept override {
    aborted_ = true;
    mpi_.abort(exit_code);
  }

 private:
  using Counts = std::vector<int>;

  void call(int error, const char* what) const {
    if (error == 0) return;
    char words[512];
    mpi_.describe(error, words, sizeof words);
    throw Error(ErrorCode::kIo, format("MPI failed in {} on rank {}: {}", what, rank(), words));
  }

  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  // Elements of part r when `n` are cut into one part a rank.
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
      Counts bytes(ranks()), offsets(ranks()), in_bytes(ranks()), in_offsets(ranks());
      const std::int64_t mine = part(n, rank());
      std::int64_t offset = 0;
      for (int r = 0; r < size(); ++r) {
        const auto i = static_cast<std::size_t>(r);
        bytes[i] = static_cast<int>(part(n, r) * width);
        offsets[i] = static_cast<int>(offset);
        offset += bytes[i];
        in_bytes[i] = static_cast<int>(mine * width);
        in_offsets[i] = static_cast<int>(r * mine * width);
      }
      std::byte* const piece = data + at * width;
      std::byte* const rows = workspace(mine * width * size(), rows_);
      call(mpi_.all_to_all(piece, bytes.data(), offsets.data(), rows, in_bytes.data(),
                           in_offsets.data()),
           "all_reduce");
      const auto me = static_cast<std::size_t>(rank());
      reduce_rows(t.scalar_type(), piece + offsets[me], rows, mine, size(), op);
      call(mpi_.all_gather(piece, bytes.data(), offsets.data()), "all_reduce");
    });
  }

  void do_all_gather(const at::Tensor& out, const at::Tensor& in) override {
    const auto width = static_cast<std::int64_t>(in.element_size());
    const std::int64_t strip = in.numel() * width;
    const auto* const source = static_cast<const std::byte*>(in.const_data_ptr());
    auto* const target = static_cast<std::byte*>(out.mutable_data_ptr());
    by_pieces(in.numel(), width * size(), [&](std::int64_t at, std::int64_t n) {
      const Layout layout = rows_of(n * width);
      const auto bytes = static_cast<std::size_t>(n * width);
      std::byte* const rows = workspace(n * width * size(), rows_);
      std::memcpy(rows + rank() * n * width, source + at * width, bytes);
      call(mpi_.all_gather(rows, layout.bytes.data(), layout.offsets.data()), "all_gather");
      for (int r = 0; r < size(); ++r)
        std::memcpy(target + r * strip + at * width, rows + r * n * width, bytes);
    });
  }

  void do_broadcast(const at::Tensor& t, int root) override {
    const auto width = static_cast<std::int64_t>(t.element_size());
    auto* const data = static_cast<std::byte*>(t.mutable_data_ptr());
    by_pieces(t.numel(), width, [&](std::int64_t at, std::int64_t n) {
      call(mpi_.broadcast(data + at * width, static_cast<int>(n * width), root), "broadcast");
    });
  }

  void do_barrier() override { call(mpi_.barrier(), "barrier"); }

  struct Layout {
    Counts bytes, offsets;
  };
  // One row of `row_bytes` a rank, one after another.
  [[nodiscard]] Layout rows_of(std::int64_t row_bytes) const {
    Layout layout{Counts(ranks(), static_cast<int>(row_bytes)), Counts(ranks())};
    for (std::size_t r = 0; r < ranks(); ++r)
      layout.offsets[r] = static_cast<int>(static_cast<std::int64_t>(r) * row_bytes);
    return layout;
  }

  const NeapMpi& mpi_;
  std::int64_t piece_bytes_;
  int exceptions_;
  bool aborted_ = false;
  std::vector<std::byte> rows_;
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
  // Global: MPI loads parts of its own that look for its symbols.
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw Error(ErrorCode::kUnsupported, format("{} does not load: {}. Is OpenMPI installed here?",
                                                file.string(), dlerror()));
  }
  void* const symbol = dlsym(library, NEAP_MPI_ENTRY);
  if (symbol == nullptr)
    throw Error(ErrorCode::kUnsupported, format("{} is no plug-in of Neap", file.string()));
  const NeapMpi* const mpi = reinterpret_cast<NeapMpiEntry>(symbol)();
  if (mpi->abi != NEAP_MPI_ABI) {
    throw Error(ErrorCode::kUnsupported,
                format("{} is of another version of Neap (interface {}, {} "
                       "is wanted)",
                       file.string(), mpi->abi, int{NEAP_MPI_ABI}));
  }
  return *mpi;
}

}  // namespace

std::unique_ptr<Communicator> make_mpi(const NeapMpi& mpi, int rank, int size,
                                       std::int64_t piece_bytes) {
  return std::make_unique<Mpi>(mpi, rank, size, piece_bytes);
}

std::unique_ptr<Communicator> connect_mpi(const Environment& environment) {
  const NeapMpi& mpi = load();
  int rank = 0, size = 1;
  if (mpi.start(&rank, &size) != 0)
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
  return make_mpi(mpi, rank, size, kPieceBytes);
}

}  // namespace neap::parallel
