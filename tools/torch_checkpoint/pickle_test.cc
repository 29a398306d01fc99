#include "tools/torch_checkpoint/pickle.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using Kind = PickleValue::Kind;

template <size_t kSize>
std::string Text(const char (&text)[kSize]) {
  return std::string(text, kSize - 1);
}

// Protocol 2 of {"a": [1, -2, 2.5, None, True, (3, "x")]}.
std::string Example() {
  return Text(
      "\x80\x02}q\x00X\x01\x00\x00\x00"
      "aq\x01]q\x02(K\x01J\xfe\xff\xff\xffG@\x04\x00\x00\x00\x00\x00\x00N\x88K\x03X\x01\x00\x00\x00"
      "xq\x03\x86q\x04"
      "es.");
}

TEST(PickleTest, ReadsValues) {
  const auto pickle = Pickle::Parse(Example());
  ASSERT_THAT(pickle, IsOk());
  ASSERT_TRUE(pickle->root().is(Kind::kDict));
  const PickleValue* const list = pickle->root().Get("a");
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(list->items.size(), 6u);
  EXPECT_EQ(list->items[0]->integer, 1);
  EXPECT_EQ(list->items[1]->integer, -2);
  EXPECT_EQ(list->items[2]->number, 2.5);
  EXPECT_TRUE(list->items[3]->is(Kind::kNone));
  EXPECT_EQ(list->items[4]->integer, 1);
  ASSERT_TRUE(list->items[5]->is(Kind::kTuple));
  EXPECT_EQ(list->items[5]->items[1]->text, "x");
  EXPECT_EQ(pickle->root().Get("b"), nullptr);
}

// What Python would call stays a value: here os.system("touch /tmp/x").
TEST(PickleTest, CallsNothing) {
  const auto pickle =
      Pickle::Parse(Text("\x80\x02"
                         "cos\nsystem\nX\x0c\x00\x00\x00touch /tmp/x\x85R."));
  ASSERT_THAT(pickle, IsOk());
  EXPECT_TRUE(pickle->root().IsCall("os.system"));
  EXPECT_EQ(pickle->root().arguments->items[0]->text, "touch /tmp/x");
}

TEST(PickleTest, ReadsObjectsWithTheirState) {
  // An object of the class m.C, by NEWOBJ, whose state is {"n": 5}.
  const auto pickle =
      Pickle::Parse(Text("\x80\x02"
                         "cm\nC\n)\x81}X\x01\x00\x00\x00nK\x05sb."));
  ASSERT_THAT(pickle, IsOk());
  EXPECT_TRUE(pickle->root().IsCall("m.C"));
  ASSERT_NE(pickle->root().Get("n"), nullptr);
  EXPECT_EQ(pickle->root().Get("n")->integer, 5);
}

TEST(PickleTest, AListMayHoldItself) {
  const auto pickle =
      Pickle::Parse(Text("\x80\x02]q\x00h\x00"
                         "a."));
  ASSERT_THAT(pickle, IsOk());
  EXPECT_EQ(pickle->root().items[0], &pickle->root());
}

TEST(PickleTest, RefusesWhatIsCutOffAnywhere) {
  const std::string whole = Example();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(Pickle::Parse(whole.substr(0, size)), StatusIs(absl::StatusCode::kDataLoss))
        << size;
  }
}

TEST(PickleTest, RefusesWhatNoMachineCanDo) {
  const auto expect = [](const std::string& text, const char* message) {
    EXPECT_THAT(Pickle::Parse(text), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(message)))
        << message;
  };
  expect(Text("\x80\x01N."), "another protocol");
  expect(Text("."), "the stack is empty");
  expect(Text("h\x05."), "nothing was remembered");
  expect(Text("t."), "there is no mark");
  expect(Text("N(\x85."), "the stack is empty");  // what lies below a mark
  expect(Text("NNa."), "what is no list");
  expect(Text("}(Nu."), "not in pairs");
  expect(Text("NNb."), "what is no object");
  expect(Text("NN\x93."), "a name is no text");
  expect(Text("I5\n."), "operation 73 at byte 1");
  expect(Text("X\xff\xff\xff\xff"), "cut off");
  expect(Text("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"), "cut off");
}

}  // namespace
}  // namespace megatron
