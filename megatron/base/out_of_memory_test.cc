#include "megatron/base/out_of_memory.h"

#include <csignal>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "gtest/gtest.h"

namespace megatron {
namespace {

constexpr int kCode = 20;

// Throws on a thread, where nobody catches.
template <typename Exception>
void ThrowOnAThread(const Exception& exception) {
  SetExitCodeForWantOfMemory(kCode);
  std::thread([&] { throw exception; }).join();
}

TEST(OutOfMemoryTest, EndsWithTheCodeAndSaysWhatIsMissing) {
  const auto end = [] {
    SetExitCodeForWantOfMemory(kCode);
    EndForWantOfMemory(int64_t{3} << 20, "weights");
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(kCode),
              "error: out of memory: the system does not give 3145728 bytes \\(3.00 MiB\\) for "
              "weights; this process has .* MiB of addresses, .*\\(ulimit -v\\)");
}

TEST(OutOfMemoryTest, WithoutACodeTheProcessAborts) {
  const auto end = [] {
    SetExitCodeForWantOfMemory(kCode);
    SetExitCodeForWantOfMemory(kAbortForWantOfMemory);
    EndForWantOfMemory(1, "weights");
  };
  for (const bool had_code : {false, true}) {
    EXPECT_EXIT(had_code ? end() : EndForWantOfMemory(1, "weights"),
                testing::KilledBySignal(SIGABRT), "does not give 1 bytes .* for weights");
  }
}

TEST(OutOfMemoryTest, ExceptionsForWantOfMemoryAndOfThreadsEndWithTheCode) {
  EXPECT_EXIT(ThrowOnAThread(std::bad_alloc()), testing::ExitedWithCode(kCode),
              "error: the system gives this program no more memory; this process has");
  EXPECT_EXIT(ThrowOnAThread(std::system_error(
                  std::make_error_code(std::errc::resource_unavailable_try_again))),
              testing::ExitedWithCode(kCode),
              "error: the system starts no more threads .*\\(ulimit -u\\); this process has");
}

TEST(OutOfMemoryTest, OtherExceptionsEndTheProcessAsBefore) {
  EXPECT_EXIT(ThrowOnAThread(std::runtime_error("another")), testing::KilledBySignal(SIGABRT),
              "another");
  EXPECT_EXIT(
      ThrowOnAThread(std::system_error(std::make_error_code(std::errc::operation_not_permitted))),
      testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace megatron
