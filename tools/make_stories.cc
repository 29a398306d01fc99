// Writes TinyStories-like JSON lines from a grammar of our own: {"text": "..."}.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/text/stories.h"
#include "tools/common/tool_main.h"
#include "tools/common/whole_file.h"

ABSL_FLAG(int64_t, bytes, 4000000, "Bytes of story text to write; the last story goes past them.");
ABSL_FLAG(uint64_t, seed, 1, "Every seed has its own stories, the same on every machine.");
ABSL_FLAG(uint64_t, first, 0,
          "Number of the first story: the next ones of a stream make held-out text.");
ABSL_FLAG(int32_t, sentences, megatron::kStorySentences,
          "Sentences of a story, from 2 on: the first ones of the whole story.");
ABSL_FLAG(std::string, output, "-", "File to write; - writes to stdout.");
ABSL_FLAG(
    std::string, questions, "",
    "Adds questions about each story and their answers: three in \"conversations\" for data.sft, "
    "or one in \"texts\" of the form plain up to the answer, whose last word tools:evaluate lets a "
    "model guess (lambada).");
ABSL_FLAG(bool, print_entropy, false,
          "Prints the grammar's entropy, the lowest loss that a model can reach, and ends.");

namespace megatron {
namespace {

constexpr size_t kBufferSize = size_t{1} << 20;

// Returns a line of the output. The words need no escapes in JSON.
std::string Line(const std::string& story, uint64_t seed, uint64_t index) {
  const std::string form = absl::GetFlag(FLAGS_questions);
  if (form.empty()) return absl::StrCat("{\"text\": \"", story, "\"}\n");
  const std::vector<StoryQuestion> asked = MakeStoryQuestions(seed, index);
  if (form == "texts") {
    return absl::StrCat("{\"text\": \"User: ", story, " ", asked[0].question,
                        "\\nAssistant: ", asked[0].answer, "\"}\n");
  }
  std::string line = "{\"messages\": [";
  for (size_t i = 0; i < asked.size(); ++i) {
    absl::StrAppend(&line, i == 0 ? "" : ", ", "{\"role\": \"user\", \"content\": \"",
                    i == 0 ? story + " " : "", asked[i].question,
                    "\"}, {\"role\": \"assistant\", \"content\": \"", asked[i].answer, "\"}");
  }
  return absl::StrCat(line, "]}\n");
}

// Calls `write` with large pieces of the output.
absl::Status WriteStories(absl::FunctionRef<absl::Status(absl::string_view)> write) {
  const uint64_t seed = absl::GetFlag(FLAGS_seed);
  uint64_t index = absl::GetFlag(FLAGS_first);
  std::string buffer;
  for (int64_t left = absl::GetFlag(FLAGS_bytes); left > 0; ++index) {
    const std::string story = MakeStory(seed, index, absl::GetFlag(FLAGS_sentences));
    left -= static_cast<int64_t>(story.size());
    buffer += Line(story, seed, index);
    if (buffer.size() < kBufferSize && left > 0) continue;
    MEGATRON_RETURN_IF_ERROR(write(buffer));
    buffer.clear();
  }
  return absl::OkStatus();
}

absl::Status Main(const std::vector<std::string>& arguments) {
  if (!arguments.empty())
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", arguments[0], "'"));
  const int sentences = absl::GetFlag(FLAGS_sentences);
  if (sentences < kFewestStorySentences || sentences > kStorySentences) {
    return absl::InvalidArgumentError(absl::StrCat("--sentences=", sentences, " is not from ",
                                                   kFewestStorySentences, " to ", kStorySentences));
  }
  if (absl::GetFlag(FLAGS_print_entropy)) {
    const StoryEntropy entropy = ComputeStoryEntropy(sentences);
    absl::PrintF("%.4f nats in a story of %.2f bytes\n", entropy.nats_per_story,
                 entropy.bytes_per_story);
    absl::PrintF("%.6f nats per byte\n", entropy.nats_per_byte());
    absl::PrintF("%.6f nats per token where an end-of-document token follows each story\n",
                 entropy.nats_per_token());
    return absl::OkStatus();
  }
  const std::string questions = absl::GetFlag(FLAGS_questions);
  if (!questions.empty() && questions != "conversations" && questions != "texts") {
    return absl::InvalidArgumentError(
        absl::StrCat("--questions=", questions, " is neither conversations nor texts"));
  }
  if (absl::GetFlag(FLAGS_bytes) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--bytes=", absl::GetFlag(FLAGS_bytes), " is negative"));
  }
  const std::string output = absl::GetFlag(FLAGS_output);
  return output == "-" ? WriteStories(WriteToStdout) : WriteWholeFile(output, WriteStories);
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv,
                           "Writes stories as JSON lines, the input of //tools:preprocess_data:\n"
                           "  make_stories --bytes=10000000 --output=stories.jsonl",
                           megatron::Main);
}
