// Fuzzes decompression: any bytes give either an error or some text, which is the same for pieces
// of any size, in bounded memory.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/io/byte_source.h"
#include "megatron/data/io/decompress.h"

namespace {

// A few bytes can expand to gigabytes; this many are enough to compare.
constexpr size_t kEnough = size_t{1} << 18;

struct Outcome {
  bool good = true;
  std::string text;
};

Outcome ReadSome(absl::string_view stored, size_t stored_piece, size_t piece) {
  Outcome outcome;
  auto source =
      megatron::Decompress("x", megatron::MakeMemorySource(std::string(stored), stored_piece));
  if (!source.ok()) return {false, ""};
  std::string buffer(piece, '\0');
  while (outcome.text.size() < kEnough) {
    const absl::StatusOr<size_t> count = (*source)->Read(absl::MakeSpan(buffer));
    outcome.good = count.ok();
    if (!count.ok() || *count == 0) break;
    CHECK_LE(*count, piece);
    outcome.text.append(buffer, 0, *count);
  }
  CHECK_LE((*source)->stored_bytes_read(), static_cast<int64_t>(stored.size()));
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view stored(reinterpret_cast<const char*>(data), size);
  const Outcome whole = ReadSome(stored, SIZE_MAX, 65536);
  const Outcome pieces = ReadSome(stored, 5, 999);
  if (whole.text.size() < kEnough && pieces.text.size() < kEnough) {
    CHECK_EQ(whole.good, pieces.good);
    if (whole.good) CHECK(whole.text == pieces.text);
  }
  return 0;
}
