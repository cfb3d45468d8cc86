#include "parallel/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace neap::parallel {
namespace {

using ::testing::HasSubstr;

int free_port() {
  const int s = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(s, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(s, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(s);
  return ntohs(address.sin_port);
}

Environment rank_at(int rank, int size, int port) {
  Environment e;
  e.launcher = Launcher::kTorchrun;
  e.rank = rank;
  e.size = size;
  e.master_address = "127.0.0.1";
  e.master_port = port;
  return e;
}

std::vector<char> bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

// Both have shared; the first one serves.
std::pair<std::unique_ptr<Rendezvous>, std::unique_ptr<Rendezvous>> two_ranks() {
  const int port = free_port();
  auto serving = std::async(std::launch::async, [&] {
    auto place = meet(rank_at(0, 2, port), 20);
    std::vector<char> shared = bytes("x");
    place->share(shared);
    return place;
  });
  auto other = meet(rank_at(1, 2, port), 20);
  std::vector<char> shared;
  other->share(shared);
  return {serving.get(), std::move(other)};
}

TEST(Rendezvous, SharesTheFirstRanksBytesAndPassesWordOfAFailure) {
  const int port = free_port();
  const auto come = [&](int rank) {
    return std::async(std::launch::async, [=] {
      auto place = meet(rank_at(rank, 3, port), 20);
      std::vector<char> shared = bytes(rank == 0 ? "the key" : "");
      place->share(shared);
      EXPECT_EQ(shared, bytes("the key"));
      return place;
    });
  };
  auto first = come(0), second = come(1), third = come(2);
  const auto a = first.get(), b = second.get(), c = third.get();
  EXPECT_FALSE(a->failure().has_value());
  c->report_failure(3);
  EXPECT_THAT(a->failure().value(), HasSubstr("Rank 2 failed (exit code 3)"));
  EXPECT_THAT(b->failure().value(), HasSubstr("Rank 2 failed (exit code 3)"));
}

TEST(Rendezvous, CountsSignsOfLifeOfAllRanks) {
  auto [first, other] = two_ranks();
  EXPECT_EQ(other->signs_of_life(), 0);
  first->show_life();
  other->show_life();
  EXPECT_EQ(first->signs_of_life(), 2);
  EXPECT_EQ(other->signs_of_life(), 2);
  first.reset();
  other->show_life();
  EXPECT_EQ(other->signs_of_life(), 2);
}

TEST(Rendezvous, NoticesThatTheServingRankIsGone) {
  auto [serving, other] = two_ranks();
  serving.reset();
  EXPECT_THAT(other->failure().value(), HasSubstr("has ended"));
}

TEST(Rendezvous, SaysWhoWaitedWhereWhenRanksStayAway) {
  const int port = free_port();
  const auto place = meet(rank_at(0, 2, port), 1);
  std::vector<char> shared = bytes("x");
  try {
    place->share(shared);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.status().code(), ErrorCode::kTimeout);
    EXPECT_THAT(e.what(), HasSubstr("waiting for all 2 ranks"));
  }
}

TEST(Rendezvous, NeedsAPlace) {
  Environment e = rank_at(0, 2, 0);
  e.master_address.clear();
  EXPECT_THROW((void)meet(e, 1), Error);
}

}  // namespace
}  // namespace neap::parallel
