#include "megatron/tensor/tensor.h"

#include <algorithm>

namespace megatron {

Shape::Shape(const int64_t* dims, int rank) : rank_(rank) {
  CHECK_LE(rank, kMaxRank);
  std::copy(dims, dims + rank, dims_.begin());
}

int64_t Shape::numel() const {
  int64_t count = 1;
  for (int64_t dim : *this) count *= dim;
  return count;
}

int Shape::Index(int dim) const {
  const int index = dim < 0 ? dim + rank_ : dim;
  CHECK(index >= 0 && index < rank_) << "dim " << dim << " of shape " << *this;
  return index;
}

bool operator==(const Shape& a, const Shape& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << "[";
  for (int d = 0; d < shape.rank(); ++d) out << (d == 0 ? "" : ", ") << shape.begin()[d];
  return out << "]";
}

Tensor::Tensor(void* data, DType dtype, const Shape& shape, Device device)
    : data_(data), dtype_(dtype), device_(device), shape_(shape), defined_(true) {
  CHECK(data != nullptr || device.type == DeviceType::kMeta || shape.numel() == 0) << shape;
  int64_t stride = 1;
  for (int d = rank() - 1; d >= 0; --d) {
    strides_[d] = stride;
    stride *= shape_[d];
  }
}

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (int d = rank() - 1; d >= 0; --d) {
    if (shape_[d] != 1 && strides_[d] != expected) return false;
    expected *= shape_[d];
  }
  return true;
}

Tensor Tensor::View(const Shape& shape) const {
  CHECK(is_contiguous()) << *this;
  CHECK_EQ(shape.numel(), numel()) << *this << " viewed as " << shape;
  return Tensor(data_, dtype_, shape, device_);
}

Tensor Tensor::Slice(int d, int64_t begin, int64_t end) const {
  CHECK(0 <= begin && begin <= end && end <= dim(d))
      << "[" << begin << ", " << end << ") of dim " << d << " of " << *this;
  if (d < 0) d += rank();
  Tensor out = *this;
  if (data_ != nullptr)
    out.data_ = static_cast<char*>(data_) + begin * strides_[d] * SizeOf(dtype_);
  out.shape_[d] = end - begin;
  return out;
}

Tensor Tensor::Select(int d, int64_t index) const {
  if (d < 0) d += rank();
  Tensor out = Slice(d, index, index + 1);
  int kept = 0;
  Shape shape = rank() == 1 ? Shape() : Shape(shape_.begin(), rank() - 1);
  for (int i = 0; i < rank(); ++i) {
    if (i == d) continue;
    shape[kept] = shape_[i];
    out.strides_[kept++] = strides_[i];
  }
  out.shape_ = shape;
  return out;
}

Tensor Tensor::SplitDim(int d, int64_t inner) const {
  if (d < 0) d += rank();
  CHECK(inner > 0 && dim(d) % inner == 0) << "dim " << d << " of " << *this << " by " << inner;
  CHECK_LT(rank(), Shape::kMaxRank) << *this;
  std::array<int64_t, Shape::kMaxRank> dims{};
  Tensor out = *this;
  for (int i = 0; i < rank(); ++i) {
    const int to = i > d ? i + 1 : i;
    dims[to] = shape_[i];
    out.strides_[to] = strides_[i];
  }
  dims[d] /= inner;
  dims[d + 1] = inner;
  out.strides_[d] = strides_[d] * inner;
  out.strides_[d + 1] = strides_[d];
  out.shape_ = Shape(dims.data(), rank() + 1);
  return out;
}

Tensor Tensor::Moved(void* data, Device device) const {
  Tensor moved = *this;
  moved.data_ = data;
  moved.device_ = device;
  return moved;
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  if (tensor.empty()) return out << "(empty)";
  return out << tensor.dtype() << tensor.shape() << "@" << tensor.device();
}

}  // namespace megatron
