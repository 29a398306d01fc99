#include "megatron/base/host_name.h"

#include <sys/utsname.h>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(HostNameTest, IsTheNodesName) {
  utsname system;
  ASSERT_EQ(uname(&system), 0);
  EXPECT_EQ(HostName(), system.nodename);
}

}  // namespace
}  // namespace megatron
