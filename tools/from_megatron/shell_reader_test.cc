#include "tools/from_megatron/shell_reader.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/from_megatron/shell_arithmetic.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the words of all commands, with " | " between words and a line feed behind commands.
std::string Commands(absl::string_view text, const ShellInputs& inputs = {}) {
  const absl::StatusOr<ShellScript> script = ReadShell(text, inputs);
  if (!script.ok()) return std::string(script.status().message());
  std::string result;
  for (const ShellCommand& command : script->commands) {
    std::vector<std::string> words;
    for (const ShellWord& word : command.words) words.push_back(word.text);
    absl::StrAppend(&result, absl::StrJoin(words, " | "), "\n");
  }
  return result;
}

std::vector<std::string> Notes(absl::string_view text) {
  std::vector<std::string> notes;
  const absl::StatusOr<ShellScript> script = ReadShell(text, {});
  EXPECT_THAT(script, IsOk());
  if (!script.ok()) return notes;
  for (const ShellNote& note : script->notes)
    notes.push_back(absl::StrCat(note.line, ": ", note.text));
  return notes;
}

TEST(ShellReaderTest, SeparatesWordsAndCommands) {
  EXPECT_EQ(Commands("a b  c\nd; e && f || g | h & i"), "a | b | c\nd\ne\nf\ni\n");
  EXPECT_EQ(Commands("a \\\n  --b 1 \\\r\n --c\r\n"), "a | --b | 1 | --c\n");
  EXPECT_EQ(Commands("a # b\n# c\nd#e"), "a\nd#e\n");
}

TEST(ShellReaderTest, FollowsQuotes) {
  EXPECT_EQ(Commands("a 'b  $c' \"d  e\"f \\\" ''"), "a | b  $c | d  ef | \" | \n");
  EXPECT_EQ(Commands("A=1; b \"$A\\$A\\\\\" '$A'"), "b | 1$A\\ | $A\n");
}

TEST(ShellReaderTest, FillsVariablesIn) {
  EXPECT_EQ(Commands("A=1\nB=\"x y\"\nc $A ${A}2 $B \"$B\""), "c | 1 | 12 | x | y | x y\n");
  EXPECT_EQ(Commands("export A=1 B=2; A=3 c $A $B"), "c | 1 | 2\n");
  EXPECT_EQ(Commands("A=1; A+=2; b $A"), "b | 12\n");
  EXPECT_EQ(Commands("A=${A:-4}; B=5; b $A ${B:-6} ${C-7}"), "b | 4 | 5 | 7\n");
  EXPECT_EQ(Commands("A=1; b x${A:+y}z x${D:+y}z"), "b | xyz | xz\n");
  EXPECT_EQ(Commands("A=; b $A c"), "b | c\n");
}

TEST(ShellReaderTest, FillsArraysIn) {
  EXPECT_EQ(Commands("A=(\n  --b 1  # one\n  --c \"2 3\"\n)\nA+=(--d)\nx ${A[@]} \"${A[@]}\""),
            "x | --b | 1 | --c | 2 | 3 | --d | --b | 1 | --c | 2 3 | --d\n");
  EXPECT_EQ(Commands("A=(); x \"${A[@]}\" y"), "x | y\n");
}

TEST(ShellReaderTest, SplitsAStringOfFlags) {
  EXPECT_EQ(Commands("A=\"\n  --b 1 \\\n  --c 2\n\"\nx $A"), "x | --b | 1 | --c | 2\n");
}

TEST(ShellReaderTest, KeepsTheLineInWhichAWordWasWritten) {
  const absl::StatusOr<ShellScript> script =
      ReadShell("A=(\n --b 1\n --c\n)\nB=\"--d \\\n --e\"\nx ${A[@]} $B y", {});
  ASSERT_THAT(script, IsOk());
  std::vector<int> lines;
  for (const ShellWord& word : script->commands[0].words) lines.push_back(word.line);
  EXPECT_THAT(lines, ElementsAre(7, 2, 2, 3, 5, 6, 7));
}

TEST(ShellReaderTest, ComputesArithmetic) {
  EXPECT_EQ(Commands("A=8\nB=2\nC=$(($A*$B))\nx $C $((A / B - 1)) $(( (C+1) % 5 )) \"$((-A))\""),
            "x | 16 | 3 | 2 | -8\n");
  EXPECT_EQ(Commands("x $((1/0))"), "line 1: cannot compute '1/0'");
  EXPECT_EQ(Commands("\nx $((9223372036854775807 + 1))"),
            "line 2: cannot compute '9223372036854775807 + 1'");
  EXPECT_EQ(Commands("A=b; x $((A))"), "line 1: 'A' is 'b', which is no number");
}

TEST(ShellArithmeticTest, RefusesDeepNestingAndOverflow) {
  const auto none = [](absl::string_view) { return absl::NotFoundError("name"); };
  EXPECT_THAT(ComputeShellArithmetic("2 + 3 * (4 - 1)", none), IsOkAndHolds(11));
  EXPECT_THAT(ComputeShellArithmetic(std::string(1000, '('), none),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ComputeShellArithmetic("4611686018427387904 * 2", none),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ComputeShellArithmetic("-9223372036854775807 - 2", none),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ComputeShellArithmetic("a + 1", none), StatusIs(absl::StatusCode::kNotFound));
}

TEST(ShellReaderTest, TakesTheScriptsArguments) {
  const ShellInputs inputs = {{"p", "q r"}, {}};
  EXPECT_EQ(Commands("A=$1\nx $A \"$2\" $# ${3:-s} \"$@\"", inputs),
            "x | p | q r | 2 | s | p | q r\n");
  EXPECT_EQ(Commands("shift; x $1", inputs), "x | q | r\n");
}

TEST(ShellReaderTest, ShiftTakesSoManyArguments) {
  const ShellInputs inputs = {{"p", "q", "r"}, {}};
  EXPECT_EQ(Commands("shift 2; x $1 $#", inputs), "x | r | 1\n");
  EXPECT_EQ(Commands("N=3; shift $N; x $#", inputs), "x | 0\n");
  EXPECT_EQ(Commands("shift 0; x $1", inputs), "x | p\n");
  // It fails where there are fewer, and then takes none.
  EXPECT_EQ(Commands("shift 4 || x $1; shift -1 || y $#", inputs), "x | p\ny | 3\n");
  EXPECT_EQ(Commands("shift && x; y"), "y\n");
  EXPECT_EQ(Commands("shift a; x $1", inputs), "x | p\n");
  EXPECT_THAT(Notes("shift $N"), ElementsAre("1: 'shift $N' is not followed"));
}

TEST(ShellReaderTest, GivenVariablesWinOverAssignments) {
  EXPECT_EQ(Commands("A=1; b $A", {{}, {{"A", "2"}}}), "b | 2\n");
}

TEST(ShellReaderTest, NamesWhatIsNotSet) {
  const absl::StatusOr<ShellScript> script = ReadShell(
      "SAVE=$1\nHOST=$(hostname -f | head)\nx $SAVE/a \"$DATA\" $HOST `date` $((N * 2))", {});
  ASSERT_THAT(script, IsOk());
  std::vector<std::string> words, unset;
  for (const ShellWord& word : script->commands[0].words) {
    words.push_back(word.text);
    unset.push_back(word.unset);
  }
  EXPECT_THAT(words, ElementsAre("x", "$SAVE/a", "$DATA", "$HOST", "$(...)", "$N"));
  EXPECT_THAT(unset, ElementsAre("", "SAVE", "DATA", "HOST", "(...)", "N"));
  EXPECT_EQ(script->unset.at("SAVE"), "the script's argument 1");
  EXPECT_EQ(script->unset.at("DATA"), "the variable DATA, which the script does not set");
  EXPECT_EQ(script->unset.at("HOST"), "the output of a command, which is not run");
}

TEST(ShellReaderTest, FollowsConditions) {
  EXPECT_EQ(Commands("A=b\nif [ $A = b ]; then x; else y; fi"), "x\n");
  EXPECT_EQ(Commands("A=b\nif [[ $A != b* ]]; then x; elif [ 3 -gt 2 ]; then y; else z; fi"),
            "y\n");
  EXPECT_EQ(Commands("[ -z \"$A\" ] && A=1\n[[ -n $A && ! $A == 2 ]] && x $A"), "x | 1\n");
  EXPECT_EQ(Commands("if [ 1 = 2 -o 1 = 1 ] && ! false; then x; fi"), "x\n");
  EXPECT_EQ(Commands("mkdir a && x || y"), "mkdir | a\nx\n");
  EXPECT_EQ(Commands("M=7B\ncase $M in\n 1B) x ;;\n 7B|8B)\n y\n z ;;\n *) w ;;\nesac\nv"),
            "y\nz\nv\n");
  EXPECT_EQ(Commands("case $1 in a) x;; *) y\nesac", {{"b"}, {}}), "y\n");
}

TEST(ShellReaderTest, DoesNotComputeWhatDoesNotRun) {
  EXPECT_EQ(Commands("if false; then A=$((1/0)); x; fi; y"), "y\n");
}

TEST(ShellReaderTest, SaysWhatItDoesNotFollow) {
  EXPECT_THAT(
      Notes("x\nwhile read a; do\n y; done < f\nfor i in 1 2; do z; done"),
      ElementsAre("2: the loop 'while' is not followed", "4: the loop 'for' is not followed"));
  EXPECT_THAT(
      Notes("f() {\n x\n}\nfunction g { y; }"),
      ElementsAre("1: the function 'f' is not followed", "4: the function 'g' is not followed"));
  EXPECT_THAT(Notes("if [ -f a ]; then x; fi"),
              ElementsAre("1: the condition '-f' is taken as false"));
  EXPECT_THAT(
      Notes("if [ -n \"$KEY\" ]; then x; fi"),
      ElementsAre("1: a condition asks for the variable KEY, which the script does not set: "
                  "taken as empty"));
  EXPECT_THAT(Notes("source env.sh"), ElementsAre("1: the file of 'source' is not read"));
  EXPECT_THAT(Notes("A=b; x ${A%b}"), ElementsAre("1: an expansion of 'A' is not followed"));
  EXPECT_THAT(Notes("[[ $A =~ ^(a|b)$ ]] && x"), testing::SizeIs(2));
  EXPECT_THAT(Notes("x --a 1"), IsEmpty());
}

TEST(ShellReaderTest, LeavesRedirectionsOut) {
  EXPECT_EQ(Commands("x --a 1 > log 2>&1\ny >>log < in &\nz 2> >(cat)"), "x | --a | 1\ny\nz\n");
  EXPECT_EQ(Commands("x 2>&1 | tee log"), "x\ntee | log\n");
}

TEST(ShellReaderTest, ReadsHereDocuments) {
  const absl::StatusOr<ShellScript> script = ReadShell(
      "S=2\ncat <<EOF > a.json\n{\"stage\": $S}\nEOF\ncat > b <<-'END'\n\t$S\n\tEND\nx", {});
  ASSERT_THAT(script, IsOk());
  EXPECT_EQ(script->files.at("a.json"), "{\"stage\": 2}\n");
  EXPECT_EQ(script->files.at("b"), "$S\n");
  EXPECT_EQ(script->commands.back().words[0].text, "x");
}

TEST(ShellReaderTest, ReadsScriptsInStrings) {
  EXPECT_EQ(Commands("A='--b \"1 2\"'\nC=\"x $A $D\"\nsrun -N2 bash -c \"$C --e\""),
            "srun | -N2 | x | --b | 1 2 | $D | --e\n");
  EXPECT_EQ(Commands("A='x 1'; eval \"$A 2\""), "x | 1 | 2\n");
  EXPECT_EQ(Commands("sbatch <<EOF\n#SBATCH -N 2\nx 1\nEOF\n"), "#SBATCH | -N | 2\nx | 1\n");
}

TEST(ShellReaderTest, RefusesWhatIsNoScript) {
  EXPECT_EQ(Commands("a\nb 'c"), "line 2: a ' is not closed");
  EXPECT_EQ(Commands("a \"b"), "line 1: a \" is not closed");
  EXPECT_EQ(Commands("A=(1 2"), "line 1: the array's ')' is missing");
  EXPECT_EQ(Commands("if x; then y"), "line 1: expected 'fi'");
  EXPECT_EQ(Commands("fi"), "line 1: unexpected 'fi'");
  EXPECT_EQ(Commands("a )"), "line 1: unexpected ')'");
  EXPECT_EQ(Commands("x ${A:-b"), "line 1: the } of ${ is missing");
  EXPECT_EQ(Commands("x $(a"), "line 1: a parenthesis is not closed");
  EXPECT_EQ(Commands("cat <<EOF\na"), "line 1: no line 'EOF'");
  EXPECT_THAT(Commands(absl::string_view("a\n\0b", 4)), HasSubstr("line 2 holds the byte 0x00"));
}

TEST(ShellReaderTest, HostileScriptsStayBounded) {
  EXPECT_THAT(Commands(std::string((1 << 20) + 1, 'a')), HasSubstr("at most 1048576 are read"));
  std::string doubling = "A=0123456789\n";
  for (int i = 0; i < 40; ++i) doubling += "A=$A$A\n";
  EXPECT_THAT(Commands(doubling), HasSubstr("the script's variables grow too large"));
  EXPECT_THAT(Commands("A='eval \"$A; $A\"'\neval \"$A\""), HasSubstr("nested too deeply"));
  std::string nested;
  for (int i = 0; i < 100000; ++i) nested += "${A:-";
  EXPECT_THAT(Commands("x " + nested), HasSubstr("nested too deeply"));
  EXPECT_THAT(Commands(std::string(100000, '(')), HasSubstr("line 1"));
  EXPECT_THAT(Commands("x $((" + std::string(100000, '(')), HasSubstr("is missing"));
  EXPECT_THAT(
      Commands("case " + std::string(200, 'a') + " in " + std::string(200, '*') + "b) x;; esac"),
      "");
}

}  // namespace
}  // namespace megatron
