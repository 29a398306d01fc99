#include "megatron/comm/communicator_conformance.h"

#include <algorithm>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/algorithm_communicator.h"
#include "megatron/comm/communicator.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"

namespace megatron {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32,
                             DType::kInt64,   DType::kUInt8,    DType::kUInt16};
// None, one, fewer than ranks, one more than a cache line, and enough for several blocks, unevenly.
constexpr int64_t kCounts[] = {0, 1, 2, 17, 1000, 4099};
// A count large enough for backends to use their threads, or to cut messages.
constexpr int64_t kLargeCount = 400009;

template <typename Fn>
void WithType(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::kFloat32:
      return fn(float());
    case DType::kBFloat16:
      return fn(BFloat16());
    case DType::kFloat16:
      return fn(Float16());
    case DType::kInt32:
      return fn(int32_t());
    case DType::kInt64:
      return fn(int64_t());
    case DType::kUInt8:
      return fn(uint8_t());
    case DType::kUInt16:
      return fn(uint16_t());
  }
}

template <typename T>
T FromDouble(double value) {
  return static_cast<T>(value);
}
template <>
BFloat16 FromDouble(double value) {
  return ToBFloat16(static_cast<float>(value));
}
template <>
Float16 FromDouble(double value) {
  return ToFloat16(static_cast<float>(value));
}
template <typename T>
double ToDouble(T value) {
  return static_cast<double>(value);
}
double ToDouble(BFloat16 value) { return ToFloat(value); }
double ToDouble(Float16 value) { return ToFloat(value); }

using Formula = std::function<double(int64_t)>;

// A tensor that owns its memory, wherever that is, and is filled and compared through the host.
class Array {
 public:
  Array(const Stream& stream, DType dtype, const Shape& shape, const Formula& formula = {})
      : stream_(stream),
        buffer_(stream.device(), shape.numel() * SizeOf(dtype), "test", &ledger_),
        tensor_(buffer_.At(0, dtype, shape)),
        mirror_(tensor_, "test") {
    if (formula) Fill(formula);
  }
  Array(const Stream& stream, DType dtype, int64_t count, const Formula& formula = {})
      : Array(stream, dtype, Shape({count}), formula) {}

  const Tensor& tensor() const { return tensor_; }
  // Returns what it holds now.
  const Tensor& Fetch() const {
    mirror_.Fetch(stream_);
    return mirror_.host();
  }

  void Fill(const Formula& formula) {
    WithType(tensor_.dtype(), [&](auto zero) {
      using T = decltype(zero);
      for (int64_t i = 0; i < tensor_.numel(); ++i) {
        static_cast<T*>(mirror_.host().raw())[i] = FromDouble<T>(formula(i));
      }
    });
    mirror_.Send(stream_);
  }

  absl::Status Expect(const Formula& formula) const {
    absl::Status status;
    const Tensor& host = Fetch();
    WithType(tensor_.dtype(), [&](auto zero) {
      using T = decltype(zero);
      for (int64_t i = 0; i < tensor_.numel() && status.ok(); ++i) {
        const double found = ToDouble(static_cast<const T*>(host.raw())[i]);
        if (found == ToDouble(FromDouble<T>(formula(i)))) continue;
        std::ostringstream text;
        text << tensor_ << " has " << found << " at " << i << " instead of " << formula(i);
        status = absl::InternalError(text.str());
      }
    });
    return status;
  }

 private:
  const Stream stream_;
  MemoryLedger ledger_;
  Buffer buffer_;
  Tensor tensor_;
  HostMirror mirror_;
};

// Small whole numbers, so that sums over few ranks are exact in every dtype and every order.
double Value(int rank, int64_t i) { return (rank * 7 + i * 3) % 11 + rank; }

double Reduced(ReduceOp op, int size, int64_t i) {
  double result = Value(0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double value = Value(rank, i);
    if (op == ReduceOp::kSum) result += value;
    if (op == ReduceOp::kMax) result = std::max(result, value);
    if (op == ReduceOp::kMin) result = std::min(result, value);
  }
  return result;
}

// Brackets the ranks as docs/communication.md says.
float SumOfTree(const std::vector<float>& v) {
  switch (v.size()) {
    case 1:
      return v[0];
    case 2:
      return v[0] + v[1];
    case 3:
      return v[0] + (v[1] + v[2]);
    case 4:
      return v[0] + ((v[1] + v[2]) + v[3]);
    default:
      return v[0] + (((v[1] + v[2]) + v[3]) + v[4]);
  }
}

Formula ValuesOf(int rank) {
  return [rank](int64_t i) { return Value(rank, i); };
}

// Runs body for every dtype and count.
absl::Status ForAll(const std::function<absl::Status(DType, int64_t)>& body) {
  for (DType dtype : kDTypes) {
    for (int64_t count : kCounts) {
      MEGATRON_RETURN_IF_ERROR(body(dtype, count),
                               _ << "with " << count << " elements of " << Name(dtype));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<ConformanceCase> ConformanceCases(const ConformanceRunner& run) {
  std::vector<ConformanceCase> cases;
  for (int size = 1; size <= 4; ++size) cases.push_back({run, size});
  return cases;
}

std::vector<ConformanceCase> AlgorithmCases(const ConformanceRunner& run) {
  std::vector<ConformanceCase> cases;
  for (const CollectiveAlgorithm algorithm :
       {CollectiveAlgorithm::kRing, CollectiveAlgorithm::kTree}) {
    const ConformanceRunner runner = [=](int size, const ConformanceRank& rank) {
      return run(size, [&](const ProcessGroup& world, const Stream& stream) {
        if (world.size() == 1) return rank(world, stream);
        return rank(ProcessGroup(WithAlgorithm(world.communicator(), algorithm)), stream);
      });
    };
    for (int size = 2; size <= 5; ++size) cases.push_back({runner, size, 0, algorithm});
  }
  return cases;
}

std::string ConformanceCaseName(const ::testing::TestParamInfo<ConformanceCase>& info) {
  const int per_host = info.param.ranks_per_host;
  return absl::StrCat(info.param.size, info.param.size == 1 ? "Rank" : "Ranks",
                      per_host == 0 ? "" : absl::StrCat("On", info.param.size / per_host, "Hosts"),
                      info.param.algorithm == CollectiveAlgorithm::kRing   ? "ByRing"
                      : info.param.algorithm == CollectiveAlgorithm::kTree ? "ByTree"
                                                                           : "");
}

void CommunicatorConformanceTest::RunRanks(const ConformanceRank& rank) const {
  const absl::Status status = GetParam().run(size(), rank);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(CommunicatorConformanceTest, AllReduceReducesEveryDtypeAndCount) {
  RunRanks([](const ProcessGroup& world, const Stream& stream) -> absl::Status {
    return ForAll([&](DType dtype, int64_t count) -> absl::Status {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
        Array array(stream, dtype, count, ValuesOf(world.rank()));
        world.AllReduce(array.tensor(), op, stream);
        MEGATRON_RETURN_IF_ERROR(
            array.Expect([&](int64_t i) { return Reduced(op, world.size(), i); }), _ << Name(op));
      }
      return world.status();
    });
  });
}

TEST_P(CommunicatorConformanceTest, LargeArraysArriveWhole) {
  RunRanks([](const ProcessGroup& world, const Stream& stream) -> absl::Status {
    const auto sum = [&](int64_t i) { return Reduced(ReduceOp::kSum, world.size(), i); };
    Array array(stream, DType::kFloat32, kLargeCount, ValuesOf(world.rank()));
    world.AllReduce(array.tensor(), ReduceOp::kSum, stream);
    MEGATRON_RETURN_IF_ERROR(array.Expect(sum));
    Array gathered(stream, DType::kFloat32, kLargeCount * world.size());
    world.AllGather(array.tensor(), gathered.tensor(), stream);
    MEGATRON_RETURN_IF_ERROR(gathered.Expect([&](int64_t i) { return sum(i % kLargeCount); }));
    return world.status();
  });
}

TEST_P(CommunicatorConformanceTest, SumsAreFormedInFp32InTheOrderOfRanks) {
  const int ranks_per_host = GetParam().ranks_per_host == 0 ? size() : GetParam().ranks_per_host;
  const bool by_tree = GetParam().algorithm == CollectiveAlgorithm::kTree;
  RunRanks([=](const ProcessGroup& world, const Stream& stream) -> absl::Status {
    // Values of very different sizes, so that order and rounding show.
    const auto value = [](int rank, int64_t i) {
      return (i % 2 == 0 ? 1.0 : -1.0) * (1.0 + 0.37 * i) * (rank % 2 == 0 ? 1e4 : 0.11) /
             (rank + 1);
    };
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      const int64_t count = 6;
      const auto expected = [&](int64_t i) {
        float sum = 0;
        WithType(dtype, [&](auto zero) {
          using T = decltype(zero);
          if (by_tree) {
            std::vector<float> values;
            for (int rank = 0; rank < world.size(); ++rank)
              values.push_back(ToDouble(FromDouble<T>(value(rank, i))));
            sum = SumOfTree(values);
            return;
          }
          for (int first = 0; first < world.size(); first += ranks_per_host) {
            float of_host = 0;
            for (int rank = first; rank < first + ranks_per_host; ++rank) {
              const float summand = ToDouble(FromDouble<T>(value(rank, i)));
              of_host = rank == first ? summand : of_host + summand;
            }
            of_host = ToDouble(FromDouble<T>(of_host));
            sum = first == 0 ? of_host : sum + of_host;
          }
        });
        return static_cast<double>(sum);
      };
      for (int repetition = 0; repetition < 3; ++repetition) {
        Array array(stream, dtype, count, [&](int64_t i) { return value(world.rank(), i); });
        world.AllReduce(array.tensor(), ReduceOp::kSum, stream);
        MEGATRON_RETURN_IF_ERROR(array.Expect(expected), _ << "after all-reduce");

        Array in(stream, dtype, count * world.size(),
                 [&](int64_t i) { return value(world.rank(), i % count); });
        Array out(stream, dtype, count);
        world.ReduceScatter(in.tensor(), out.tensor(), stream);
        MEGATRON_RETURN_IF_ERROR(out.Expect(expected), _ << "after reduce-scatter");
      }
    }
    return world.status();
  });
}

TEST_P(CommunicatorConformanceTest, AllGatherPutsPartsInTheOrderOfRanks) {
  RunRanks([](const ProcessGroup& world, const Stream& stream) -> absl::Status {
    return ForAll([&](DType dtype, int64_t count) -> absl::Status {
      const auto expected = [&](int64_t i) { return Value(i / count, i % count); };
      Array in(stream, dtype, count, ValuesOf(world.rank()));
      Array out(stream, dtype, count * world.size());
      world.AllGather(in.tensor(), out.tensor(), stream);
      MEGATRON_RETURN_IF_ERROR(out.Expect(expected));

      Array whole(stream, dtype, count * world.size(), [&](int64_t i) {
        return i / count == world.rank() ? Value(world.rank(), i % count) : 0;
      });
      world.AllGather(whole.tensor().Slice(0, world.rank() * count, (world.rank() + 1) * count),
                      whole.tensor(), stream);
      MEGATRON_RETURN_IF_ERROR(whole.Expect(expected), _ << "in place");
      return world.status();
    });
  });
}

TEST_P(CommunicatorConformanceTest, ReduceScatterGivesEachRankItsPart) {
  RunRanks([](const ProcessGroup& world, const Stream& stream) -> absl::Status {
    return ForAll([&](DType dtype, int64_t count) -> absl::Status {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
        const int64_t begin = world.rank() * count;
        const auto expected = [&](int64_t i) { return Reduced(op, world.size(), begin + i); };
        Array in(stream, dtype, count * world.size(), ValuesOf(world.rank()));
        Array out(stream, dtype, count);
        world.ReduceScatter(in.tensor(), out.tensor(), stream, op);
        MEGATRON_RETURN_IF_ERROR(out.Expect(expected));
        MEGATRON_RETURN_IF_ERROR(in.Expect(ValuesOf(world.rank())), _ << "the input changed");

        const Tensor part = in.tensor().Slice(0, begin, begin + count);
        world.ReduceScatter(in.tensor(), part, stream, op);
        MEGATRON_RETURN_IF_ERROR(in.Expect([&](int64_t i) {
          return i >= begin && i < begin + count ? expected(i - begin) : Value(world.rank(), i);
        }),
                                 _ << "in place");
      }
      return world.status();
    });
  });
}

TEST_P(CommunicatorConformanceTest, GatheringWhatWasReduceScatteredIsAllReducing) {
  RunRanks([](const ProcessGroup& world, const Stream& stream) -> absl::Status {
    const int64_t count = 331;
    const auto value = [&](int64_t i) { return 1.0 / (1 + world.rank() + i); };
    Array all(stream, DType::kFloat32, count * world.size(), value);
    Array in(stream, DType::kFloat32, count * world.size(), value);
    Array part(stream, DType::kFloat32, count);
    world.AllReduce(all.tensor(), ReduceOp::kSum, stream);
    world.ReduceScatter(in.tensor(), part.tensor(), stream);
    world.AllGather(part.tensor(), in.tensor(), stream);
    const Tensor& sums = all.Fetch();
    MEGATRON_RETURN_IF_ERROR(in.Expect([&](int64_t i) { return sums.data<float>()[i]; }));
    return world.status();
  });
}

TEST_P(CommunicatorConformanceTest, AllToAllTransposesParts) {
  RunRanks([](const ProcessGroup& world, const Stream& stream) -> absl::Status {
    return ForAll([&](DType dtype, int64_t count) -> absl::Status {
      Array in(stream, dtype, count * world.size(), ValuesOf(world.rank()));
      Array out(stream, dtype, count * world.size());
      world.AllToAll(in.tensor(), out.tensor(), stream);
      MEGATRON_RETURN_IF_ERROR(out.Expect(
          [&](int64_t i) { return Value(i / count, world.rank() * count + i % count); }));
      return world.status();
    });
  });
}

TEST_P(CommunicatorConformanceTest, AllToAllVMovesUnevenParts) {
  RunRanks([](const ProcessGroup& world, const Stream& stream) -> absl::Status {
    // Rows that one rank sends another; some pairs send none.
    const auto rows = [](int from, int to) { return int64_t{(from * 5 + to * 3) % 4}; };
    const int64_t columns = 3;
    for (DType dtype : kDTypes) {
      std::vector<int64_t> send, receive;
      int64_t sent = 0, received = 0;
      for (int peer = 0; peer < world.size(); ++peer) {
        send.push_back(rows(world.rank(), peer));
        receive.push_back(rows(peer, world.rank()));
        sent += send.back();
        received += receive.back();
      }
      Array in(stream, dtype, {sent, columns}, ValuesOf(world.rank()));
      Array out(stream, dtype, {received, columns});
      world.AllToAllV(in.tensor(), send, out.tensor(), receive, stream);
      std::vector<double> expected;
      for (int peer = 0; peer < world.size(); ++peer) {
        int64_t first = 0;
        for (int to = 0; to < world.rank(); ++to) first += rows(peer, to);
        for (int64_t i = 0; i < receive[peer] * columns; ++i) {
          expected.push_back(Value(peer, first * columns + i));
        }
      }
      MEGATRON_RETURN_IF_ERROR(out.Expect([&](int64_t i) { return expected[i]; }));
    }
    return world.status();
  });
}

TEST_P(CommunicatorConformanceTest, BroadcastSendsFromEveryRoot) {
  RunRanks([](const ProcessGroup& world, const Stream& stream) -> absl::Status {
    return ForAll([&](DType dtype, int64_t count) -> absl::Status {
      for (int root = 0; root < world.size(); ++root) {
        Array array(stream, dtype, count, ValuesOf(world.rank()));
        world.Broadcast(array.tensor(), root, stream);
        MEGATRON_RETURN_IF_ERROR(array.Expect(ValuesOf(root)), _ << "from " << root);
      }
      return world.status();
    });
  });
}

TEST_P(CommunicatorConformanceTest, ExchangePassesMessagesBothWaysAroundARing) {
  if (size() == 1) return;  // nobody to send to
  RunRanks([](const ProcessGroup& world, const Stream& stream) -> absl::Status {
    return ForAll([&](DType dtype, int64_t count) -> absl::Status {
      const int next = (world.rank() + 1) % world.size();
      const int previous = (world.rank() + world.size() - 1) % world.size();
      Array out(stream, dtype, count, ValuesOf(world.rank()));
      Array longer(stream, dtype, count + 5, ValuesOf(world.rank()));
      Array from_next(stream, dtype, count), from_previous(stream, dtype, count);
      Array longer_from_previous(stream, dtype, count + 5);
      // Messages go to one peer in this order; with two ranks, next and previous are the same one.
      world.Exchange({{next, out.tensor()}, {next, longer.tensor()}, {previous, out.tensor()}},
                     {{previous, from_previous.tensor()},
                      {previous, longer_from_previous.tensor()},
                      {next, from_next.tensor()}},
                     stream);
      MEGATRON_RETURN_IF_ERROR(from_previous.Expect(ValuesOf(previous)));
      MEGATRON_RETURN_IF_ERROR(longer_from_previous.Expect(ValuesOf(previous)));
      MEGATRON_RETURN_IF_ERROR(from_next.Expect(ValuesOf(next)));
      return world.status();
    });
  });
}

TEST_P(CommunicatorConformanceTest, ExchangeConcernsTheRanksNamedOnly) {
  if (size() < 3) return;
  RunRanks([](const ProcessGroup& world, const Stream& stream) -> absl::Status {
    // A relay: each message can only be sent after the one before has been received.
    Array array(stream, DType::kInt32, 4);
    if (world.rank() == 0) {
      array.Fill(ValuesOf(0));
    } else {
      world.Exchange({}, {{world.rank() - 1, array.tensor()}}, stream);
    }
    if (world.rank() + 1 < world.size()) {
      world.Exchange({{world.rank() + 1, array.tensor()}}, {}, stream);
    }
    MEGATRON_RETURN_IF_ERROR(array.Expect(ValuesOf(0)));
    return world.status();
  });
}

TEST_P(CommunicatorConformanceTest, GroupsOfOneWorldWorkSideBySide) {
  if (size() != 4) return;
  RunRanks([](const ProcessGroup& world, const Stream& stream) -> absl::Status {
    MEGATRON_ASSIGN_OR_RETURN(auto row, world.communicator()->Split({{0, 1}, {2, 3}}, "row"));
    MEGATRON_ASSIGN_OR_RETURN(auto column, world.communicator()->Split({{0, 2}, {3, 1}}, "column"));
    const ProcessGroup rows(row), columns(column);
    if (rows.rank() != world.rank() % 2) return absl::InternalError("rank in row");
    if (columns.rank() != (world.rank() == 2 || world.rank() == 1 ? 1 : 0)) {
      return absl::InternalError("rank in column");
    }
    for (int repetition = 0; repetition < 50; ++repetition) {
      Array array(stream, DType::kFloat32, 100, [&](int64_t) { return 1 << world.rank(); });
      rows.AllReduce(array.tensor(), ReduceOp::kSum, stream);
      const double row_sum = world.rank() < 2 ? 3 : 12;
      MEGATRON_RETURN_IF_ERROR(array.Expect([&](int64_t) { return row_sum; }));
      columns.AllReduce(array.tensor(), ReduceOp::kSum, stream);
      MEGATRON_RETURN_IF_ERROR(array.Expect([&](int64_t) { return 15.0; }));
    }
    return world.status();
  });
}

// The ways in which rank 1 may differ from what the others call.
struct Mismatch {
  const char* what;
  std::function<void(const ProcessGroup&, bool odd, const Stream&)> call;
};

std::vector<Mismatch> Mismatches() {
  return {
      {"operation",
       [](const ProcessGroup& world, bool odd, const Stream& stream) {
         Array array(stream, DType::kFloat32, 8);
         if (odd) {
           world.Broadcast(array.tensor(), 0, stream);
         } else {
           world.AllReduce(array.tensor(), ReduceOp::kSum, stream);
         }
       }},
      {"shape",
       [](const ProcessGroup& world, bool odd, const Stream& stream) {
         Array array(stream, DType::kFloat32, odd ? 7 : 8);
         world.AllReduce(array.tensor(), ReduceOp::kSum, stream);
       }},
      {"dtype",
       [](const ProcessGroup& world, bool odd, const Stream& stream) {
         Array array(stream, odd ? DType::kBFloat16 : DType::kFloat32, 8);
         world.AllReduce(array.tensor(), ReduceOp::kSum, stream);
       }},
      {"reduction",
       [](const ProcessGroup& world, bool odd, const Stream& stream) {
         Array array(stream, DType::kFloat32, 8);
         world.AllReduce(array.tensor(), odd ? ReduceOp::kMax : ReduceOp::kSum, stream);
       }},
      {"root",
       [](const ProcessGroup& world, bool odd, const Stream& stream) {
         Array array(stream, DType::kFloat32, 8);
         world.Broadcast(array.tensor(), odd ? 1 : 0, stream);
       }},
      {"counts",
       [](const ProcessGroup& world, bool odd, const Stream& stream) {
         const std::vector<int64_t> one(world.size(), 1), two(world.size(), 2);
         Array in(stream, DType::kFloat32, world.size() * (odd ? 2 : 1));
         Array out(stream, DType::kFloat32, world.size());
         world.AllToAllV(in.tensor(), odd ? two : one, out.tensor(), one, stream);
       }},
      {"barrier",
       [](const ProcessGroup& world, bool odd, const Stream& stream) {
         if (odd) return world.Barrier(stream);
         Array array(stream, DType::kFloat32, 8);
         world.AllReduce(array.tensor(), ReduceOp::kSum, stream);
       }},
  };
}

TEST_P(CommunicatorConformanceTest, CallsThatDoNotMatchAreNamedOnEveryRank) {
  if (size() == 1) return;  // nobody to disagree with
  for (const Mismatch& mismatch : Mismatches()) {
    const absl::Status status = GetParam().run(
        size(), [&](const ProcessGroup& world, const Stream& stream) -> absl::Status {
          world.Barrier(stream);
          mismatch.call(world, world.rank() == 1, stream);
          if (world.status().code() != absl::StatusCode::kFailedPrecondition) {
            return absl::InternalError(
                absl::StrCat("rank ", world.rank(), " has ", world.status().ToString()));
          }
          // Sticky: nothing happens any more.
          Array array(stream, DType::kInt32, 8, ValuesOf(world.rank()));
          world.AllReduce(array.tensor(), ReduceOp::kSum, stream);
          MEGATRON_RETURN_IF_ERROR(array.Expect(ValuesOf(world.rank())), _ << "a later call ran");
          return absl::OkStatus();
        });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition)
        << mismatch.what << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 of world")) << status;
  }
}

}  // namespace megatron
