// The ranks of islands in federated rounds, each a thread, with a real server, against a plain
// program.

#include "megatron/islands/island_link.h"

#include <sys/stat.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/federated/clipped_update.h"
#include "megatron/islands/frame_tap.h"
#include "megatron/islands/model_order.h"
#include "megatron/islands/outer_server.h"
#include "megatron/islands/test_island.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::HasSubstr;

constexpr double kClipNorm = 2;

// The model's tensors; `split` is cut over tensor-parallel ranks along dim 1.
const std::vector<NamedShape>& Tensors() {
  static const auto* const tensors =
      new std::vector<NamedShape>{{"bias", {700}}, {"matrix", {33, 5}}, {"split", {64, 48}}};
  return *tensors;
}
constexpr int64_t kModel = 700 + 33 * 5 + 64 * 48;

float StartOf(int64_t i) { return 0.01f * std::sin(static_cast<float>(i)); }

// What an island's steps take from element i in a round. Island 1 has taken more than the clip
// norm.
float StepsOf(int island, int round, int64_t i) {
  const float scale = island == 1 ? 0.5f : 0.01f;
  return scale * std::sin(static_cast<float>(i * (island + 2) + 97 * round));
}

using Steps = std::function<float(int island, int round, int64_t i)>;

// The place of an element of this rank's block in the model.
int64_t PlaceOf(const Parameter& parameter, int64_t begin, int64_t local) {
  const Sharding& sharding = parameter.sharding;
  int64_t place = 0;
  int64_t rest = local;
  int64_t stride = 1;
  for (int d = sharding.local_shape.rank() - 1; d >= 0; --d) {
    place += (rest % sharding.local_shape[d] + sharding.offset[d]) * stride;
    rest /= sharding.local_shape[d];
    stride *= sharding.global_shape[d];
  }
  return begin + place;
}

struct Layout {
  int tensor = 1, data = 1;
  DataSharding sharding = DataSharding::kNone;
};

struct Island {
  int number = 0;
  Layout layout;
  int rounds = 1;
  std::string server;                       // where it connects; empty: to the server itself
  std::vector<IslandLink::Round> finished;  // on its last rank
  bool budget_spent = false;
};

// A world of federated islands.
class IslandLinkTest : public ::testing::Test {
 protected:
  IslandLinkTest() {
    secret_file_ = ::testing::TempDir() + "/" +
                   ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".secret";
    std::ofstream(secret_file_) << secret_.ToHex() << "\n";
    chmod(secret_file_.c_str(), 0600);
    federated_.clip_norm = kClipNorm;
  }

  void Start(int min_islands) {
    OuterServerOptions options;
    options.min_islands = min_islands;
    options.round_timeout = absl::Seconds(60);
    options.federated = federated_;
    options.state_file = "state";
    auto server = OuterServer::Start(options, secret_, fs_);
    ASSERT_THAT(server.status(), IsOk());
    server_ = *std::move(server);
  }

  absl::Status RunRank(Island* island, const Steps& steps, int rank, const ProcessGroup& world) {
    ParallelSizes sizes;
    sizes.tensor = island->layout.tensor;
    sizes.data = island->layout.data;
    MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(sizes, world.size()));
    MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(sizes, world.size()));
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                              MakeGroups(dense, expert, world.communicator()));
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    TestModel model;
    std::map<std::string, int64_t> begins;
    int64_t begin = 0;
    for (const NamedShape& tensor : Tensors()) {
      begins[tensor.name] = begin;
      begin += tensor.shape.numel();
      model.Add(tensor.name, tensor.name == "split" ? SplitOverTensor(tensor.shape, 1, sizes.tensor,
                                                                      groups.tensor.rank())
                                                    : Replicated(tensor.shape));
    }
    model.buffer_options.sharding = island->layout.sharding;
    model.buffer_options.data =
        DataRankOf(groups.data_context_shards, groups.data_context_replicas);
    model.Build();
    ParameterBuffers& buffers = *model.buffers;
    OuterOptimizerOptions outer_options = {1, 0.7, 0.9, true};
    outer_options.elsewhere = true;
    OuterOptimizer outer(outer_options, groups, &buffers, &model.ledger);
    // Calls visit(a master weight, its element of the global copy, its place in the model).
    const auto for_each = [&](const auto& visit) {
      for (const FlatParameter& flat : buffers.parameters()) {
        const Bucket& bucket = buffers.bucket_of(flat);
        const FlatRange range = Common(flat.range, buffers.optimizer_range(bucket));
        if (range.size() <= 0) continue;
        float* const masters = buffers.Masters(bucket, range).data<float>();
        const float* const global = outer.Global(bucket, range).data<float>();
        for (int64_t i = 0; i < range.size(); ++i) {
          visit(&masters[i], global[i],
                PlaceOf(*flat.parameter, begins.at(flat.parameter->name),
                        range.begin - flat.range.begin + i));
        }
      }
    };
    for_each([](float* master, float, int64_t place) { *master = StartOf(place); });
    outer.Start(stream);
    IslandLinkOptions options;
    options.server_address = island->server;
    options.secret_file = secret_file_;
    options.island = island->number;
    options.agreement = "the model";
    options.outer = {0.7, 0.9, true};
    options.federated = federated_;
    options.tell_interval = tell_interval_;
    MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<IslandLink> link,
                              IslandLink::Create(options, Tensors(), groups, &outer, &buffers));
    const IslandLink::Stop never = [] { return false; };
    const bool tells = rank == world.size() - 1;
    buffers.ZeroGradients(stream);
    MEGATRON_ASSIGN_OR_RETURN(const IslandLink::Round joined, link->Join(0, -1, never, stream));
    if (joined.has_copy) outer.TakeCopy(stream);
    for (int round = 0; round < island->rounds; ++round) {
      for_each([&](float* master, float global, int64_t place) {
        *master = global - steps(island->number, round, place);
      });
      outer.FormUpdate(stream);
      MEGATRON_ASSIGN_OR_RETURN(const IslandLink::Round done, link->Exchange(never, stream));
      if (tells) island->finished.push_back(done);
      EXPECT_TRUE(done.has_copy);
      outer.TakeCopy(stream);
    }
    const std::vector<float> copy = server_->global();
    const bool last = server_->round() == link->round();
    for_each([&](float* master, float global, int64_t place) {
      EXPECT_EQ(*master, global);
      if (last) {
        EXPECT_EQ(global, copy[place]);
      }
    });
    if (tells) island->budget_spent = link->budget_spent();
    return world.status();
  }

  // Runs all islands to their ends.
  void Run(std::vector<Island>* islands, const Steps& steps = StepsOf) {
    std::vector<std::thread> threads;
    for (Island& island : *islands) {
      if (island.server.empty()) island.server = server_->endpoint().ToString();
      threads.emplace_back([this, &island, &steps] {
        const int ranks = island.layout.tensor * island.layout.data;
        EXPECT_THAT(RunRanks(ranks,
                             [&](int rank, const ProcessGroup& world) {
                               return RunRank(&island, steps, rank, world);
                             }),
                    IsOk());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // The integers of an island's update in a plain program.
  static std::vector<uint32_t> IntegersOf(int island, int round, const ModelValues& global) {
    ModelValues update(kModel);
    for (int64_t i = 0; i < kModel; ++i) {
      const float master = global[i] - StepsOf(island, round, i);
      update[i] = global[i] - master;
    }
    std::vector<uint32_t> integers(kModel);
    EXPECT_THAT(EncodeUpdate(update, ClipScale(SquaredNorm(update), kClipNorm).value(), kClipNorm,
                             absl::MakeSpan(integers)),
                IsOk());
    return integers;
  }
  static ModelValues StartValues() {
    ModelValues values(kModel);
    for (int64_t i = 0; i < kModel; ++i) values[i] = StartOf(i);
    return values;
  }
  // The weights of a plain program after rounds of these islands.
  static ModelValues PlainRounds(const std::vector<std::vector<int>>& rounds) {
    Plain plain(StartValues());
    for (size_t round = 0; round < rounds.size(); ++round) {
      std::vector<int64_t> sums(kModel, 0);
      for (const int island : rounds[round]) {
        const std::vector<uint32_t> integers =
            IntegersOf(island, static_cast<int>(round), plain.global());
        for (int64_t i = 0; i < kModel; ++i) sums[i] += static_cast<int32_t>(integers[i]);
      }
      ModelValues mean(kModel);
      for (int64_t i = 0; i < kModel; ++i) {
        mean[i] = static_cast<float>(
            MeanOfUnits(sums[i], static_cast<int>(rounds[round].size()), kClipNorm));
      }
      plain.Step({mean});
    }
    return plain.global();
  }

  const JobSecret secret_ = JobSecret::Random();
  std::string secret_file_;
  FederatedOptions federated_;
  absl::Duration tell_interval_ = absl::Minutes(1);
  MemoryFileSystem fs_;
  std::unique_ptr<OuterServer> server_;
};

TEST_F(IslandLinkTest, RoundsAreThePlainProgramsBitForBitForEveryLayout) {
  const Layout whole, tensor = {2, 1}, replicas = {1, 2}, states = {1, 2, DataSharding::kStates},
                      both = {2, 2, DataSharding::kStates}, thirds = {1, 3, DataSharding::kStates};
  const ModelValues expected = PlainRounds({{0, 1}, {0, 1}, {0, 1}});
  for (const auto& [first, second] : std::vector<std::pair<Layout, Layout>>{
           {whole, whole}, {tensor, states}, {replicas, both}, {thirds, tensor}}) {
    SCOPED_TRACE(::testing::Message() << first.tensor << " " << first.data << " and "
                                      << second.tensor << " " << second.data);
    fs_.Remove("state").IgnoreError();
    Start(2);
    std::vector<Island> islands = {{0, first, 3}, {1, second, 3}};
    Run(&islands);
    EXPECT_EQ(server_->global(), expected);
    for (const Island& island : islands) {
      ASSERT_EQ(island.finished.size(), 3u);
      for (int round = 0; round < 3; ++round) {
        EXPECT_TRUE(island.finished[round].took_part);
        EXPECT_EQ(island.finished[round].round, round + 1);
        EXPECT_EQ(island.finished[round].present, (std::vector<int>{0, 1}));
        EXPECT_FALSE(island.finished[round].epsilon.has_value());
      }
    }
  }
}

TEST_F(IslandLinkTest, AnUpdateWithANaNOnOneRankIsLeftOutOnAll) {
  Start(2);
  std::vector<Island> islands = {{0}, {1, {1, 2, DataSharding::kStates}}, {2}};
  Run(&islands, [](int island, int round, int64_t i) {
    return island == 1 && i == 5 ? std::numeric_limits<float>::quiet_NaN()
                                 : StepsOf(island, round, i);
  });
  EXPECT_THAT(islands[1].finished[0].left_out, HasSubstr("which cannot be clipped"));
  EXPECT_FALSE(islands[1].finished[0].took_part);
  EXPECT_EQ(islands[0].finished[0].present, (std::vector<int>{0, 2}));
  EXPECT_EQ(server_->global(), PlainRounds({{0, 2}}));
}

// The distance of the counts of bytes from equal counts; for random bytes it is about 255, with a
// deviation of 23.
double ChiSquare(const std::vector<uint32_t>& words) {
  std::vector<double> counts(256, 0);
  for (const uint32_t word : words) {
    for (int shift = 0; shift < 32; shift += 8) ++counts[word >> shift & 255];
  }
  const double expected = static_cast<double>(words.size()) * 4 / 256;
  double sum = 0;
  for (const double count : counts) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

TEST_F(IslandLinkTest, WhatTheServerIsSentLooksRandomAndIsNotTheUpdate) {
  Start(2);
  const ModelOrder order(Tensors());
  absl::Mutex mutex;
  std::map<int64_t, std::vector<uint32_t>> sent;  // by round
  const FrameTap tap(server_->endpoint().ToString(), [&](const IslandMessage& message) {
    if (message.kind == IslandMessageKind::kPut && message.content != IslandContent::kCopy) {
      absl::MutexLock lock(&mutex);
      EXPECT_EQ(message.content, IslandContent::kMasked);
      std::vector<uint32_t>& all = sent[message.round];
      all.resize(kModel);
      EXPECT_THAT(order.ForEachRun(message.block,
                                   [&](const ModelOrder::Run& run) {
                                     std::memcpy(&all[run.in_model],
                                                 &message.values[4 * run.in_block], 4 * run.count);
                                   }),
                  IsOk());
    }
    return true;
  });
  std::vector<Island> islands = {{0, {2, 1}, 2}, {1, {}, 2}};
  islands[0].server = tap.address();
  Run(&islands);
  const absl::MutexLock lock(&mutex);
  ASSERT_EQ(sent.size(), 2u);
  const std::vector<uint32_t> plain = IntegersOf(0, 0, StartValues());
  EXPECT_GT(ChiSquare(plain), 10000);
  for (const auto& [round, vector] : sent) {
    EXPECT_LT(ChiSquare(vector), 255 + 6 * 23) << round;
    int same = 0;
    for (int64_t i = 0; i < kModel; ++i) same += vector[i] == plain[i];
    EXPECT_LE(same, 1) << round;
  }
  int same = 0;
  for (int64_t i = 0; i < kModel; ++i) same += sent[0][i] == sent[1][i];
  EXPECT_LE(same, 1);
}

TEST_F(IslandLinkTest, AnIslandWhoseConnectionIsLostBeforeItSendsIsNotInTheSum) {
  Start(3);  // the sum begins with all three
  std::atomic<bool> cut{false};
  const FrameTap tap(server_->endpoint().ToString(), [&](const IslandMessage& message) {
    return message.kind != IslandMessageKind::kPut || message.content != IslandContent::kMasked ||
           cut.exchange(true);
  });
  std::vector<Island> islands = {{0}, {1}, {2}};
  islands[2].server = tap.address();
  Run(&islands);
  EXPECT_TRUE(cut.load());
  EXPECT_EQ(islands[0].finished[0].present, (std::vector<int>{0, 1}));
  EXPECT_FALSE(islands[2].finished[0].took_part);
  EXPECT_EQ(server_->global(), PlainRounds({{0, 1}}));
}

TEST_F(IslandLinkTest, AnIslandWhoseConnectionIsLostAfterItHasSentIsInTheSum) {
  Start(3);  // the sum begins with all three
  std::atomic<bool> cut{false};
  const FrameTap tap(server_->endpoint().ToString(), [&](const IslandMessage& message) {
    return message.kind != IslandMessageKind::kReveal || cut.exchange(true);
  });
  std::vector<Island> islands = {{0}, {1}, {2, {2, 1}}};
  islands[2].server = tap.address();
  Run(&islands);
  EXPECT_TRUE(cut.load());
  EXPECT_EQ(islands[0].finished[0].present, (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(islands[2].finished[0].took_part);
  EXPECT_EQ(server_->global(), PlainRounds({{0, 1, 2}}));
}

TEST_F(IslandLinkTest, WithTooFewTheRoundSaysWhyAndTheNextOneIsWhole) {
  Start(2);
  std::atomic<bool> cut{false};
  const FrameTap tap(server_->endpoint().ToString(), [&](const IslandMessage& message) {
    return message.kind != IslandMessageKind::kPut || message.content != IslandContent::kMasked ||
           cut.exchange(true);
  });
  std::vector<Island> islands = {{0, {}, 2}, {1, {}, 2}};
  islands[1].server = tap.address();
  // Their steps are the same in both rounds.
  Run(&islands, [](int island, int, int64_t i) { return StepsOf(island, 0, i); });
  const IslandLink::Round& failed = islands[0].finished[0];
  EXPECT_TRUE(failed.present.empty());
  EXPECT_THAT(failed.note, HasSubstr("and 2 are needed"));
  EXPECT_EQ(islands[0].finished[1].present, (std::vector<int>{0, 1}));
  EXPECT_EQ(server_->global(), PlainRounds({{0, 1}}));
}

// Notices a warning that has these words.
class WarningSink : public google::LogSink {
 public:
  explicit WarningSink(std::string words) : words_(std::move(words)) { google::AddLogSink(this); }
  ~WarningSink() override { google::RemoveLogSink(this); }

  void send(google::LogSeverity severity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message, size_t length) override {
    if (severity == google::GLOG_WARNING && absl::StrContains({message, length}, words_))
      seen_.Notify();
  }
  bool WaitFor(absl::Duration time) { return seen_.WaitForNotificationWithTimeout(time); }

 private:
  const std::string words_;
  absl::Notification seen_;
};

TEST_F(IslandLinkTest, AnIslandThatWaitsForAnotherSaysSo) {
  tell_interval_ = absl::Seconds(2);
  Start(2);
  WarningSink warnings(" for the end of round 1: the outer server waits for other islands");
  bool told = false;
  std::vector<Island> islands = {{0, {}, 1}, {1, {}, 1}};
  Run(&islands, [&](int island, int round, int64_t i) {
    if (island == 1 && i == 0) told = warnings.WaitFor(absl::Seconds(60));
    return StepsOf(island, round, i);
  });
  EXPECT_TRUE(told);
  EXPECT_EQ(islands[0].finished[0].present, (std::vector<int>{0, 1}));
}

TEST_F(IslandLinkTest, IslandsAreToldOfTheBudgetAndItsEnd) {
  federated_.noise_multiplier = 1;
  federated_.max_epsilon = 7.2;
  Start(2);
  std::vector<Island> islands = {{0, {}, 2}, {1, {1, 2}, 2}};
  Run(&islands);
  for (const Island& island : islands) {
    EXPECT_NEAR(island.finished[0].epsilon.value_or(0), 4.7285, 1e-3);
    EXPECT_NEAR(island.finished[1].epsilon.value_or(0), 7.0774, 1e-3);
    EXPECT_EQ(island.finished[1].delta, 1e-5);
    EXPECT_FALSE(island.finished[0].budget_spent);
    EXPECT_TRUE(island.finished[1].budget_spent);
    EXPECT_TRUE(island.budget_spent);
  }
  // The noise is 1 clip norm, in the mean of two half of it.
  const ModelValues plain = PlainRounds({{0, 1}}), noised = server_->global();
  double squares = 0;
  for (int64_t i = 0; i < kModel; ++i) squares += std::pow(noised[i] - plain[i], 2);
  EXPECT_GT(std::sqrt(squares / kModel), 0.5 * kClipNorm);
  // A third round is none: they get the copy.
  std::vector<Island> late = {{0}};
  Run(&late);
  EXPECT_TRUE(late[0].budget_spent);
  EXPECT_FALSE(late[0].finished[0].took_part);
  EXPECT_EQ(server_->global(), noised);
}

}  // namespace
}  // namespace megatron
