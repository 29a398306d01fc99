#include "megatron/data/text/text_documents.h"

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/io/byte_source.h"
#include "megatron/data/io/line_batches.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

bool Always(const TextDocumentReport&) { return true; }

absl::StatusOr<std::string> Convert(const std::vector<std::string>& texts,
                                    const TextDocumentOptions& options = {},
                                    TextDocumentReport* report = nullptr) {
  std::vector<std::string> paths;
  for (size_t i = 0; i < texts.size(); ++i) paths.push_back(absl::StrCat(i));
  LineBatchReader input(paths,
                        [&](const std::string& path, const std::atomic<bool>*) {
                          return MakeMemorySource(texts[std::stoi(path)], 7);
                        },
                        {/*max_line_bytes=*/1000, /*batch_bytes=*/16});
  std::string out;
  const auto result = TextToJsonLines(
      input, options,
      [&](absl::string_view text) {
        out.append(text.data(), text.size());
        return absl::OkStatus();
      },
      Always);
  if (!result.ok()) return result.status();
  if (report != nullptr) *report = *result;
  return out;
}

TEST(TextDocumentsTest, ASeparatorOnItsOwnLineEndsADocument) {
  TextDocumentReport report;
  EXPECT_THAT(Convert({"\nOnce upon\na \"time\".\n\n<|endoftext|>\nTwo <|endoftext|> here\n "
                       "<|endoftext|> \r\n\n<|endoftext|>\nThree"},
                      {}, &report),
              IsOkAndHolds("{\"text\": \"Once upon\\na \\\"time\\\".\"}\n"
                           "{\"text\": \"Two <|endoftext|> here\"}\n{\"text\": \"Three\"}\n"));
  EXPECT_EQ(report.documents, 3);
  EXPECT_EQ(report.lines, 10);
}

TEST(TextDocumentsTest, TheEndOfAnInputEndsADocument) {
  EXPECT_THAT(Convert({"a\n", "", "b"}), IsOkAndHolds("{\"text\": \"a\"}\n{\"text\": \"b\"}\n"));
}

TEST(TextDocumentsTest, ASeparatorCanBeAnywhereInALine) {
  TextDocumentOptions options;
  options.separator = "##";
  options.anywhere = true;
  options.json_key = "te\"xt";
  EXPECT_THAT(
      Convert({"a##b\nc## ##d\n##"}, options),
      IsOkAndHolds("{\"te\\\"xt\": \"a\"}\n{\"te\\\"xt\": \"b\\nc\"}\n{\"te\\\"xt\": \"d\"}\n"));
}

TEST(TextDocumentsTest, BlankLinesCanSeparateDocuments) {
  TextDocumentOptions options;
  options.separator = "";
  EXPECT_THAT(Convert({"a\nb\n\n \nc\n"}, options),
              IsOkAndHolds("{\"text\": \"a\\nb\"}\n{\"text\": \"c\"}\n"));
}

TEST(TextDocumentsTest, WhiteSpaceCanBeKept) {
  TextDocumentOptions options;
  options.strip = false;
  EXPECT_THAT(Convert({" a \n\n<|endoftext|>\n"}, options),
              IsOkAndHolds("{\"text\": \" a \\n\"}\n"));
}

TEST(TextDocumentsTest, BadUtf8IsAnErrorOrReplaced) {
  EXPECT_THAT(Convert({"a\nb\xff"
                       "c\n"}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("0, line 2: bad")));
  TextDocumentOptions options;
  options.replace_bad_utf8 = true;
  TextDocumentReport report;
  EXPECT_THAT(Convert({"b\xff\xe3\x81"
                       "c"},
                      options, &report),
              IsOkAndHolds("{\"text\": \"b\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                           "c\"}\n"));
  EXPECT_EQ(report.replaced_bytes, 3);
}

TEST(TextDocumentsTest, ADocumentLongerThanTheLimitIsAnError) {
  TextDocumentOptions options;
  options.max_document_bytes = 10;
  EXPECT_THAT(Convert({"12345\n1234\n<|endoftext|>\n"}, options), IsOk());
  EXPECT_THAT(
      Convert({"12345\n12345\n<|endoftext|>\n"}, options),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("line 2: a document of more than 10")));
  EXPECT_THAT(Convert({std::string(2000, 'x')}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("line 1: a document of more")));
}

TEST(TextDocumentsTest, TextWithoutDocumentsIsAnError) {
  EXPECT_THAT(Convert({"<|endoftext|>\n \n"}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("lines read: 2")));
}

TEST(TextDocumentsTest, InvalidSeparatorsAreRefused) {
  TextDocumentOptions options;
  for (const char* separator : {"a\nb", " x"}) {
    options.separator = separator;
    EXPECT_THAT(Convert({"a"}, options), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  options.separator = "";
  options.anywhere = true;
  EXPECT_THAT(Convert({"a"}, options), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(TextDocumentsTest, AFailedWriteIsReturned) {
  LineBatchReader input(
      {"a"}, [](const std::string&, const std::atomic<bool>*) { return MakeMemorySource("x\n"); },
      {});
  EXPECT_THAT(TextToJsonLines(
                  input, {}, [](absl::string_view) { return absl::ResourceExhaustedError("full"); },
                  Always),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace megatron
