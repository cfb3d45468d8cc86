#include "parallel/rendezvous.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <chrono>

#include "base/format.h"
#include "base/status.h"
#include "parallel/mpi.h"

namespace neap::parallel {
namespace {

constexpr const char* kIdKey = "neap/id";
constexpr const char* kArrivedKey = "neap/arrived";
constexpr const char* kAllHereKey = "neap/all_here";
constexpr const char* kFailedKey = "neap/failed";
constexpr const char* kLifeKey = "neap/life";

using Bytes8 = std::vector<std::uint8_t>;

class StoreRendezvous final : public Rendezvous {
 public:
  StoreRendezvous(const Environment& environment, double timeout_seconds)
      : rank_(environment.rank), size_(environment.size) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(environment.master_port);
    options.isServer = environment.rank == 0 && !environment.agent_store;
    options.waitWorkers = false;  // share() waits instead
    options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_seconds * 1000));
    where_ = format("{}:{}", environment.master_address, environment.master_port);
    try {
      store_ = c10::make_intrusive<c10d::TCPStore>(environment.master_address, options);
      if (!environment.store_prefix.empty())
        store_ = c10::make_intrusive<c10d::PrefixStore>(environment.store_prefix, store_);
    } catch (const std::exception& e) {
      throw Error(ErrorCode::kIo, format("Rank {} cannot connect to the rendezvous at {}: {}",
                                         rank_, where_, first_line(e)));
    }
  }

  void share(std::vector<char>& bytes) override {
    try {
      if (rank_ == 0) {
        store_->set(kIdKey, Bytes8(bytes.begin(), bytes.end()));
      } else {
        const Bytes8 got = store_->get(kIdKey);
        bytes.assign(got.begin(), got.end());
      }
      if (store_->add(kArrivedKey, 1) == size_) store_->set(kAllHereKey, Bytes8{1});
      store_->wait({kAllHereKey});
    } catch (const std::exception& e) {
      throw Error(ErrorCode::kTimeout,
                  format("Rank {} timed out at the rendezvous {}, waiting for all {} ranks: {}",
                         rank_, where_, size_, first_line(e)));
    }
  }

  void report_failure(int exit_code) noexcept override {
    try {
      const std::string text = format("Rank {} failed (exit code {})", rank_, exit_code);
      store_->set(kFailedKey, Bytes8(text.begin(), text.end()));
      (void)store_->check({kFailedKey});  // returns after the store has the value
    } catch (...) {                       // the store itself may have failed
    }
  }

  std::optional<std::string> failure() override {
    try {
      if (!store_->check({kFailedKey})) return std::nullopt;
      const Bytes8 text = store_->get(kFailedKey);
      return std::string(text.begin(), text.end());
    } catch (const std::exception&) {
      return format("The rendezvous {} is closed: its rank has ended", where_);
    }
  }

  void show_life() noexcept override { count_signs(1); }
  std::int64_t signs_of_life() noexcept override { return count_signs(0); }

 private:
  std::int64_t count_signs(std::int64_t more) noexcept {
    try {
      signs_ = store_->add(kLifeKey, more);
    } catch (...) {  // failure() reports it
    }
    return signs_;
  }
  // libtorch appends a C++ stack.
  static std::string first_line(const std::exception& e) {
    const std::string text = e.what();
    return text.substr(0, text.find('\n'));
  }

  int rank_, size_;
  std::atomic<std::int64_t> signs_ = 0;
  std::string where_;
  c10::intrusive_ptr<c10d::Store> store_;
};

class MpiRendezvous final : public Rendezvous {
 public:
  MpiRendezvous(const Environment& environment, double timeout_seconds)
      : mpi_(connect_mpi(environment, timeout_seconds)) {}
  void share(std::vector<char>& bytes) override {
    const at::Tensor t = at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())},
                                       at::TensorOptions().dtype(at::kByte));
    mpi_->broadcast(t, 0);
    mpi_->barrier();
  }
  void report_failure(int exit_code) noexcept override { mpi_->abort(exit_code); }
  std::optional<std::string> failure() override { return std::nullopt; }  // mpirun ends the job
  void show_life() noexcept override {}
  std::int64_t signs_of_life() noexcept override { return 0; }

 private:
  std::unique_ptr<Communicator> mpi_;
};

}  // namespace

std::unique_ptr<Rendezvous> meet(const Environment& environment, double timeout_seconds) {
  if (!environment.master_address.empty())
    return std::make_unique<StoreRendezvous>(environment, timeout_seconds);
  if (environment.under_mpi) return std::make_unique<MpiRendezvous>(environment, timeout_seconds);
  throw Error(ErrorCode::kInvalidArgument,
              "MASTER_ADDR and MASTER_PORT are not set: the ranks cannot find each other");
}

}  // namespace neap::parallel
