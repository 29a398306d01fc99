#include "megatron/base/patient_lock.h"

#include <thread>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "megatron/base/steady_now.h"

namespace megatron {
namespace {

TEST(PatientLockTest, GivesUpIfTheHolderHangs) {
  absl::Mutex mutex;
  absl::Notification taken, enough;
  std::thread holder([&] {
    const absl::MutexLock lock(&mutex);
    taken.Notify();
    enough.WaitForNotification();
  });
  taken.WaitForNotification();
  const absl::Time begin = SteadyNow();
  EXPECT_FALSE(PatientLock(&mutex, absl::Milliseconds(20)).held());
  EXPECT_GE(SteadyNow() - begin, absl::Milliseconds(20));
  enough.Notify();
  EXPECT_TRUE(PatientLock(&mutex, absl::Seconds(60)).held());
  holder.join();
  EXPECT_TRUE(PatientLock(&mutex, absl::ZeroDuration()).held());
  EXPECT_TRUE(mutex.TryLock());  // the lock was released
  mutex.Unlock();
}

}  // namespace
}  // namespace megatron
