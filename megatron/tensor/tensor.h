// Tensor: a typed, shaped, strided view of memory that somebody else owns (a Buffer or an Arena).
// Copying one copies no data and allocates nothing.
//
// *dim* means a tensor's dimension here; the parallel axes are *axes* (axis.h). Strides count
// elements. A default-constructed Tensor is *empty*: it stands for "not there" (an absent bias),
// which is not the same as having no elements.
#ifndef MEGATRON_TENSOR_TENSOR_H_
#define MEGATRON_TENSOR_TENSOR_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <vector>

#include "glog/logging.h"
#include "megatron/tensor/device.h"
#include "megatron/tensor/dtype.h"

namespace megatron {

class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(dims.begin(), static_cast<int>(dims.size())) {}
  explicit Shape(const std::vector<int64_t>& dims)
      : Shape(dims.data(), static_cast<int>(dims.size())) {}
  Shape(const int64_t* dims, int rank);

  int rank() const { return rank_; }
  int64_t operator[](int dim) const { return dims_[Index(dim)]; }
  int64_t& operator[](int dim) { return dims_[Index(dim)]; }
  int64_t numel() const;
  std::vector<int64_t> dims() const {
    return std::vector<int64_t>(dims_.begin(), dims_.begin() + rank_);
  }
  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + rank_; }

  friend bool operator==(const Shape& a, const Shape& b);
  friend bool operator!=(const Shape& a, const Shape& b) { return !(a == b); }
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape);  // [2, 3]

 private:
  // Negative dims count from the end.
  int Index(int dim) const;

  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

class Tensor {
 public:
  Tensor() = default;
  // Makes a contiguous tensor. `data` is null on the meta device and nowhere else, unless there are
  // no elements.
  Tensor(void* data, DType dtype, const Shape& shape, Device device = {});

  bool empty() const { return !defined_; }
  explicit operator bool() const { return defined_; }

  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t dim(int d) const { return shape_[d]; }
  int64_t stride(int d) const { return strides_[d < 0 ? d + rank() : d]; }
  int64_t numel() const { return shape_.numel(); }
  int64_t bytes() const { return numel() * SizeOf(dtype_); }
  bool is_contiguous() const;

  void* raw() const { return data_; }
  template <typename T>
  T* data() const {
    CHECK_EQ(dtype_, DTypeOf<T>::value);
    return static_cast<T*>(data_);
  }

  // The same memory under another shape; contiguous tensors only.
  Tensor View(const Shape& shape) const;
  Tensor Flatten() const { return View({numel()}); }
  // Elements [begin, end) of a dim, and one element of it with the dim dropped.
  Tensor Slice(int d, int64_t begin, int64_t end) const;
  Tensor Select(int d, int64_t index) const;
  // The same memory with dim d as two, the second of which has `inner` elements; any strides.
  Tensor SplitDim(int d, int64_t inner) const;
  // The same shape and strides over other memory.
  Tensor Moved(void* data, Device device) const;

  friend std::ostream& operator<<(std::ostream& out,
                                  const Tensor& tensor);  // fp32[2, 3]@cpu, for messages

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kFloat32;
  Device device_;
  Shape shape_;
  std::array<int64_t, Shape::kMaxRank> strides_{};
  bool defined_ = false;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_TENSOR_H_
