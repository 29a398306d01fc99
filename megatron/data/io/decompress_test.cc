#include "megatron/data/io/decompress.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/io/byte_source.h"
#include "zlib.h"
#include "zstd.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(&out[0]);
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(const std::string& text) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  std::string out(ZSTD_compressBound(text.size()), '\0');
  const size_t size = ZSTD_compress2(context, &out[0], out.size(), text.data(), text.size());
  EXPECT_FALSE(ZSTD_isError(size));
  ZSTD_freeCCtx(context);
  out.resize(size);
  return out;
}

absl::StatusOr<std::string> Read(const std::string& name, const std::string& stored,
                                 size_t stored_piece = SIZE_MAX, size_t piece = 65536) {
  auto source = Decompress(name, MakeMemorySource(stored, stored_piece));
  if (!source.ok()) return source.status();
  std::string text, buffer(piece, '\0');
  while (true) {
    const absl::StatusOr<size_t> count = (*source)->Read(absl::MakeSpan(buffer));
    if (!count.ok()) return count.status();
    if (*count == 0) return text;
    text.append(buffer, 0, *count);
  }
}

// Returns about a megabyte of text that is neither random nor constant.
std::string SomeText() {
  std::string text;
  for (int i = 0; i < 50000; ++i) absl::StrAppend(&text, "line ", i * 7919 % 10007, " of text\n");
  return text;
}

TEST(DecompressTest, FormatsAreRecognizedByTheirContents) {
  const std::string text = SomeText();
  EXPECT_THAT(Read("x", text), IsOkAndHolds(text));
  EXPECT_THAT(Read("x", Gzip(text)), IsOkAndHolds(text));
  EXPECT_THAT(Read("x", Zstd(text)), IsOkAndHolds(text));
  EXPECT_THAT(Read("x", ""), IsOkAndHolds(""));
  EXPECT_THAT(Read("x", "a"), IsOkAndHolds("a"));
  EXPECT_THAT(Read("x.gz", Gzip("")), IsOkAndHolds(""));
  EXPECT_THAT(Read("x.zst", Zstd("")), IsOkAndHolds(""));
}

TEST(DecompressTest, PiecesOfAnySizeGiveTheSameText) {
  const std::string text = SomeText().substr(0, 20000);
  for (const std::string& stored : {text, Gzip(text), Zstd(text)}) {
    for (const size_t stored_piece : {1, 3, 1000}) {
      for (const size_t piece : {1, 7, 4096})
        EXPECT_THAT(Read("x", stored, stored_piece, piece), IsOkAndHolds(text));
    }
  }
}

TEST(DecompressTest, ConcatenatedFilesAreReadAsOne) {
  EXPECT_THAT(Read("x.gz", Gzip("one ") + Gzip("") + Gzip("two")), IsOkAndHolds("one two"));
  EXPECT_THAT(Read("x.zst", Zstd("one ") + Zstd("") + Zstd("two")), IsOkAndHolds("one two"));
  EXPECT_THAT(Read("x.gz", Gzip("padded") + std::string(1000, '\0')), IsOkAndHolds("padded"));
  const std::string skippable("\x50\x2a\x4d\x18\x03\0\0\0abc", 11);
  EXPECT_THAT(Read("x.zst", skippable + Zstd("text") + skippable), IsOkAndHolds("text"));
}

TEST(DecompressTest, EveryTruncationIsAnError) {
  const std::string text = SomeText().substr(0, 500);
  for (const auto& [name, stored] :
       {std::make_pair("x.gz", Gzip(text)), std::make_pair("x.zst", Zstd(text))}) {
    for (size_t size = 0; size < stored.size(); ++size) {
      EXPECT_THAT(Read(name, stored.substr(0, size)),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr(name)))
          << size << " bytes of " << stored.size();
    }
  }
}

TEST(DecompressTest, DamageNeverGivesOtherText) {
  const std::string text = SomeText().substr(0, 500);
  for (const auto& [name, good] :
       {std::make_pair("x.gz", Gzip(text)), std::make_pair("x.zst", Zstd(text))}) {
    // The ten bytes of gzip's header hold a time and an operating system, which are ignored.
    for (size_t i = std::string(name) == "x.gz" ? 10 : 0; i < good.size(); ++i) {
      std::string damaged = good;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
      const absl::StatusOr<std::string> result = Read(name, damaged);
      if (result.ok()) {
        EXPECT_EQ(*result, text) << "byte " << i;
      } else {
        EXPECT_THAT(result, StatusIs(absl::StatusCode::kDataLoss));
      }
    }
  }
}

// The frame declares 256 bytes but holds one empty block.
TEST(DecompressTest, AFrameShorterThanItsHeaderSaysIsAnErrorForPiecesOfAnySize) {
  const std::string frame("\x28\xb5\x2f\xfd\x40\x24\0\0\x01\0\0", 11);
  for (const size_t stored_piece : {size_t{1}, size_t{5}, SIZE_MAX}) {
    for (const size_t piece : {size_t{1}, size_t{999}, size_t{65536}}) {
      EXPECT_THAT(Read("x.zst", Zstd("text") + frame, stored_piece, piece),
                  StatusIs(absl::StatusCode::kDataLoss))
          << stored_piece << " " << piece;
    }
  }
}

TEST(DecompressTest, ContentsThatContradictTheNameAreAnError) {
  EXPECT_THAT(Read("x.gz", "plain text"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no gzip data")));
  EXPECT_THAT(Read("x.zst", Gzip("a")),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no zstd data")));
  EXPECT_THAT(Read("x.gz", ""), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(Read("x.gz", Gzip("a") + "b"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("follows")));
}

// The frame's header asks for a window of 2 GiB.
TEST(DecompressTest, AWindowThatIsTooLargeIsRefused) {
  EXPECT_THAT(Read("x.zst", std::string("\x28\xb5\x2f\xfd\x00\xa8\0\0\0\0\0\0", 12)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("too much memory")));
}

}  // namespace
}  // namespace megatron
