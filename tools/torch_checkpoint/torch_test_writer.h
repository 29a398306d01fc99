// Writes files of torch.save and distributed checkpoints of PyTorch, for tests.
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_TEST_WRITER_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_TEST_WRITER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

// A whole tensor in fp32.
struct TestTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// Writes a pickle, one value after another. What begins a list, a tuple, a dict or an object is
// ended by the function of the same name; a dict's values are keys and values in turn.
class PickleWriter {
 public:
  PickleWriter& None() { return Put("N"); }
  PickleWriter& Bool(bool value) { return Put(value ? "\x88" : "\x89"); }
  PickleWriter& Int(int64_t value);
  PickleWriter& Float(double value);
  PickleWriter& Text(absl::string_view text);
  PickleWriter& BeginList() { return Put("]("); }
  PickleWriter& EndList() { return Put("e"); }
  PickleWriter& BeginTuple() { return Put("("); }
  PickleWriter& EndTuple() { return Put("t"); }
  PickleWriter& BeginDict() { return Put("}("); }
  PickleWriter& EndDict() { return Put("u"); }
  // A function or class: "torch.Size" is Global("torch", "Size").
  PickleWriter& Global(absl::string_view module, absl::string_view name);
  // Calls the function before the tuple before.
  PickleWriter& Call() { return Put("R"); }
  // An object of a class, whose state is a dict.
  PickleWriter& BeginObject(absl::string_view module, absl::string_view name);
  PickleWriter& EndObject() { return Put("ub"); }
  // An object of a class, whose state is the value that comes next, until EndState.
  PickleWriter& BeginState(absl::string_view module, absl::string_view name);
  PickleWriter& EndState() { return Put("b"); }
  PickleWriter& Size(const std::vector<int64_t>& sizes);
  // Takes the value before as the name of something that lies elsewhere.
  PickleWriter& Elsewhere() { return Put("Q"); }

  std::string Finish() const { return "\x80\x02" + text_ + "."; }

 private:
  PickleWriter& Put(absl::string_view bytes);

  std::string text_;
};

// Writes a file of torch.save: values by `pickle`, and tensors by Tensor.
class TorchFileWriter {
 public:
  PickleWriter& pickle() { return pickle_; }
  // The next value is this tensor.
  TorchFileWriter& Tensor(const TestTensor& tensor);
  std::string Finish() const;

 private:
  PickleWriter pickle_;
  std::vector<std::string> storages_;
};

// Returns the file of one tensor.
std::string TorchFileOf(const TestTensor& tensor);

// Writes a distributed checkpoint.
class DcpWriter {
 public:
  // Cuts each dim into so many parts, which divide it.
  void Add(const std::string& name, const TestTensor& tensor, const std::vector<int64_t>& parts);
  // The same with each part flattened and cut into so many pieces, not all of one size: the form of
  // Megatron's distributed optimizer.
  void AddFlattened(const std::string& name, const TestTensor& tensor,
                    const std::vector<int64_t>& parts, int64_t pieces);
  // Adds a part of a tensor with one dim and so many elements: those from `begin` on.
  void AddPiece(const std::string& name, int64_t elements, int64_t begin,
                const std::vector<float>& values);
  // Adds what is no tensor, a file of torch.save.
  void AddObject(const std::string& name, const std::string& file);
  std::string Metadata() const;
  // Writes .metadata and the file of the parts into the directory, which exists.
  void Write(const std::string& directory) const;

 private:
  struct Chunk {
    std::vector<int64_t> offset, size;
    uint64_t begin = 0, length = 0;
  };
  struct Entry {
    std::vector<int64_t> shape;     // as it is stored
    std::vector<int64_t> original;  // of a flattened tensor; empty for others
    std::vector<Chunk> chunks;
  };

  void AddChunk(const std::vector<int64_t>& offset, const TestTensor& part, Entry* entry);

  std::map<std::string, Entry> entries_;
  std::map<std::string, Chunk> objects_;
  std::string data_;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_TEST_WRITER_H_
