// main() of a fuzz target without a fuzzer: feeds the files named on the command line, and simple
// variations of each (cut short, one byte changed), to LLVMFuzzerTestOneInput. The variations are
// the same in every run.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kCuts = 64;
constexpr size_t kChanges = 256;

void Feed(const std::string& input) {
  // An exact copy on the heap, so that a sanitizer sees the first byte read past the end.
  auto* copy = new uint8_t[input.size()];
  input.copy(reinterpret_cast<char*>(copy), input.size());
  LLVMFuzzerTestOneInput(copy, input.size());
  delete[] copy;
}

void FeedVariations(const std::string& input) {
  for (size_t i = 0; i < kCuts; ++i) Feed(input.substr(0, input.size() * i / kCuts));
  if (input.empty()) return;
  for (size_t i = 0; i < kChanges; ++i) {
    std::string changed = input;
    // The beginning of a file controls its parser, so most changes go there.
    const size_t span = i % 4 == 0 || input.size() < 64 ? input.size() : 64;
    changed[(i * 2654435761u) % span] ^= static_cast<char>(1 + i * 37 % 255);
    Feed(changed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Feed("");
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot read corpus file %s\n", argv[i]);
      return 1;
    }
    const std::string input((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
    Feed(input);
    FeedVariations(input);
  }
  std::printf("replayed %d corpus files and their variations\n", argc - 1);
  return 0;
}
