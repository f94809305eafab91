#include "kernels/cuda/products.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "kernels/cuda/cublaslt.h"

namespace transload::kernels::cuda {
namespace {

constexpr int kMostAlign = 16;  // the widest access of a kernel

using Algorithm = std::array<std::uint64_t, 8>;
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

cudaDataType type_of(Dtype dtype) { return dtype == Dtype::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

int align_of(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  return at % kMostAlign == 0 ? kMostAlign : 1 << std::countr_zero(at);
}
/// Of every row of a contiguous weight whose first element lies on a boundary.
int align_of_rows(std::int64_t columns, Dtype dtype) {
  const auto bytes = static_cast<std::uint64_t>(columns) * size_of(dtype);
  return bytes % kMostAlign == 0 ? kMostAlign : 1 << std::countr_zero(bytes);
}

std::string key_of(const ProductShape& s) {
  return fmt::format("{}{} {} {} {}x{}x{} {},{},{} {}:{},{},{} {},{},{}", s.a_transposed ? 't' : 'n',
                     s.b_transposed ? 't' : 'n', name_of(s.operands), name_of(s.result), s.m, s.n, s.k, s.lda, s.ldb,
                     s.ldc, s.batch, s.stride_a, s.stride_b, s.stride_c, s.align_a, s.align_b, s.align_c);
}

void check(cublasStatus_t status, const char* operation, const ProductShape& shape) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(
      fmt::format("cuBLASLt refused {} (product {}): {}.", operation, key_of(shape), cublaslt().status_name(status)));
}

/// A descriptor of the library, destroyed by `destroy`.
template <class T, cublasStatus_t (*CublasLt::*kDestroy)(T)>
class Handle {
 public:
  Handle() = default;
  Handle(Handle&& o) noexcept : value_(std::exchange(o.value_, nullptr)) {}
  Handle& operator=(Handle&&) = delete;
  ~Handle() {
    if (value_ != nullptr) (cublaslt().*kDestroy)(value_);
  }
  T* out() { return &value_; }
  T get() const { return value_; }

 private:
  T value_ = nullptr;
};
using Library = Handle<cublasLtHandle_t, &CublasLt::destroy>;
using Operation = Handle<cublasLtMatmulDesc_t, &CublasLt::desc_destroy>;
using MatrixLayout = Handle<cublasLtMatrixLayout_t, &CublasLt::layout_destroy>;
using Preference = Handle<cublasLtMatmulPreference_t, &CublasLt::preference_destroy>;

/// What the library needs for one shape. Its matrices are column-major: a row-major X is its transpose there. So it
/// computes Cᵀ = op(B)ᵀ · op(A)ᵀ: our B is its first operand, our A its second, and what was transposed stays so.
struct Prepared {
  Operation operation;
  MatrixLayout first, second, result;
  cublasLtMatmulAlgo_t algorithm{};
};

void describe(MatrixLayout& layout, Dtype dtype, std::int64_t rows, std::int64_t columns, std::int64_t ld,
              std::int64_t stride, const ProductShape& s) {
  const CublasLt& lt = cublaslt();
  check(lt.layout_create(layout.out(), type_of(dtype), static_cast<std::uint64_t>(rows),
                         static_cast<std::uint64_t>(columns), ld),
        "cublasLtMatrixLayoutCreate", s);
  if (s.batch == 1) return;
  const auto count = static_cast<std::int32_t>(s.batch);
  check(lt.layout_set(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
        "cublasLtMatrixLayoutSetAttribute", s);
  check(lt.layout_set(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
        "cublasLtMatrixLayoutSetAttribute", s);
}

Prepared describe(const ProductShape& s) {
  const CublasLt& lt = cublaslt();
  Prepared p;
  check(lt.desc_create(p.operation.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate", s);
  const cublasOperation_t first = s.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = s.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  check(lt.desc_set(p.operation.get(), CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first),
        "cublasLtMatmulDescSetAttribute", s);
  check(lt.desc_set(p.operation.get(), CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second),
        "cublasLtMatmulDescSetAttribute", s);
  describe(p.first, s.operands, s.b_transposed ? s.k : s.n, s.b_transposed ? s.n : s.k, s.ldb, s.stride_b, s);
  describe(p.second, s.operands, s.a_transposed ? s.m : s.k, s.a_transposed ? s.k : s.m, s.lda, s.stride_a, s);
  describe(p.result, s.result, s.n, s.m, s.ldc, s.stride_c, s);
  return p;
}

/// The heuristic's first answer.
cublasLtMatmulAlgo_t choose(cublasLtHandle_t library, const Prepared& p, const ProductShape& s,
                            std::uint64_t workspace_bytes) {
  const CublasLt& lt = cublaslt();
  Preference preference;
  check(lt.preference_create(preference.out()), "cublasLtMatmulPreferenceCreate", s);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(lt.preference_set(preference.get(), attribute, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute",
          s);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(s.align_b));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(s.align_a));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(s.align_c));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(s.align_c));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = lt.heuristic(library, p.operation.get(), p.first.get(), p.second.get(), p.result.get(),
                                             p.result.get(), preference.get(), 1, &found, &count);
  if (status == CUBLAS_STATUS_SUCCESS && count == 0)
    throw Error(fmt::format("cuBLASLt has no algorithm for the product {}.", key_of(s)));
  check(status, "cublasLtMatmulAlgoGetHeuristic", s);
  return found.algo;
}

std::optional<Algorithm> algorithm_of(const nlohmann::json& numbers) {
  Algorithm algorithm{};
  if (!numbers.is_array() || numbers.size() != algorithm.size()) return std::nullopt;
  for (std::size_t i = 0; i < algorithm.size(); ++i) {
    if (!numbers[i].is_number_unsigned()) return std::nullopt;
    algorithm[i] = numbers[i].get<std::uint64_t>();
  }
  return algorithm;
}

}  // namespace

struct Products::Impl {
  Impl(std::string device_in, std::uint64_t workspace) : device(std::move(device_in)), workspace_bytes(workspace) {
    check(cublaslt().create(library.out()), "cublasLtCreate", {});
  }
  const Prepared& prepared(const ProductShape& shape);

  const std::string device;
  const std::uint64_t workspace_bytes;
  Library library;
  std::map<ProductShape, Prepared> shapes;
  std::map<std::string, Algorithm> chosen;
};

const Prepared& Products::Impl::prepared(const ProductShape& shape) {
  if (const auto known = shapes.find(shape); known != shapes.end()) return known->second;
  Prepared p = describe(shape);
  const std::string key = key_of(shape);
  if (const auto before = chosen.find(key); before != chosen.end()) {
    p.algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(before->second);
  } else {
    p.algorithm = choose(library.get(), p, shape, workspace_bytes);
    chosen[key] = std::bit_cast<Algorithm>(p.algorithm);
  }
  return shapes.emplace(shape, std::move(p)).first->second;
}

std::uint64_t product_workspace_bytes(int major) { return major >= 9 ? kMostWorkspaceBytes : kMostWorkspaceBytes / 8; }

Products::Products(std::string device, std::uint64_t workspace_bytes)
    : impl_(std::make_unique<Impl>(std::move(device), workspace_bytes)) {}
Products::~Products() = default;

void Products::run(const ProductShape& given, const void* a, const void* b, bool accumulate, void* c,
                   std::byte* workspace, cudaStream_t stream) {
  if (given.m == 0 || given.n == 0 || given.batch == 0) return;
  ProductShape shape = given;
  const auto at_most = [](int align, std::int64_t stride, Dtype dtype) {
    return std::min(align, stride == 0 ? kMostAlign : align_of_rows(stride, dtype));
  };
  shape.align_a = at_most(align_of(a), shape.stride_a, shape.operands);
  if (shape.align_b == 0) shape.align_b = at_most(align_of(b), shape.stride_b, shape.operands);
  shape.align_c = at_most(align_of(c), shape.stride_c, shape.result);
  const Prepared& p = impl_->prepared(shape);
  const float one = 1, zero = 0;
  check(cublaslt().matmul(impl_->library.get(), p.operation.get(), &one, b, p.first.get(), a, p.second.get(),
                          accumulate ? &one : &zero, c, p.result.get(), c, p.result.get(), &p.algorithm, workspace,
                          impl_->workspace_bytes, stream),
        "cublasLtMatmul", shape);
}

void Products::nt(Dtype dtype, const void* a, std::int64_t lda, const void* b, const float* bias, void* c,
                  std::int64_t ldc, std::int64_t tokens, std::int64_t h, std::int64_t inner, std::byte* scratch,
                  cudaStream_t stream) {
  ProductShape s{.b_transposed = true, .operands = dtype, .result = dtype};
  s.m = tokens, s.n = h, s.k = inner;
  s.lda = lda, s.ldb = inner, s.ldc = ldc;
  s.align_b = align_of_rows(inner, dtype);
  if (bias == nullptr) return run(s, a, b, false, c, scratch, stream);
  // One rounding, as the CPU's: the sum in fp32 first.
  auto* const sums = reinterpret_cast<float*>(scratch + kMostWorkspaceBytes);
  nt_f32(dtype, a, lda, b, sums, h, tokens, h, inner, scratch, stream);
  if (dtype == Dtype::bf16)
    round_strided(sums, bias, static_cast<bf16*>(c), ldc, tokens, h, stream);
  else
    round_strided(sums, bias, static_cast<float*>(c), ldc, tokens, h, stream);
}

void Products::nt_f32(Dtype dtype, const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc,
                      std::int64_t tokens, std::int64_t h, std::int64_t inner, std::byte* scratch,
                      cudaStream_t stream) {
  ProductShape s{.b_transposed = true, .operands = dtype};
  s.m = tokens, s.n = h, s.k = inner;
  s.lda = lda, s.ldb = inner, s.ldc = ldc;
  s.align_b = align_of_rows(inner, dtype);
  run(s, a, b, false, c, scratch, stream);
}

void Products::nn(Dtype dtype, const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc,
                  std::int64_t tokens, std::int64_t h, std::int64_t inner, bool accumulate, std::byte* scratch,
                  cudaStream_t stream) {
  ProductShape s{.operands = dtype};
  s.m = tokens, s.n = inner, s.k = h;
  s.lda = lda, s.ldb = inner, s.ldc = ldc;
  s.align_b = align_of_rows(inner, dtype);
  run(s, a, b, accumulate, c, scratch, stream);
}

void Products::tn(Dtype dtype, const void* a, std::int64_t lda, const void* b, std::int64_t ldb, float* g,
                  std::int64_t tokens, std::int64_t h, std::int64_t inner, std::byte* scratch, cudaStream_t stream) {
  ProductShape s{.a_transposed = true, .operands = dtype};
  s.m = h, s.n = inner, s.k = tokens;
  s.lda = lda, s.ldb = ldb, s.ldc = inner;
  run(s, a, b, false, g, scratch, stream);
}

std::uint64_t Products::workspace_bytes() const { return impl_->workspace_bytes; }
std::string Products::identity() const {
  return fmt::format("cuBLASLt {}, {}, workspace {}", cublaslt().version(), impl_->device, impl_->workspace_bytes);
}
std::size_t Products::size() const { return impl_->chosen.size(); }

std::string Products::to_json() const {
  return nlohmann::json{{"identity", identity()}, {"algorithms", impl_->chosen}}.dump(1) + "\n";
}

bool Products::from_json(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("identity", nlohmann::json()) != identity() || !json.contains("algorithms"))
    return false;
  std::map<std::string, Algorithm> chosen;
  for (const auto& [key, numbers] : json["algorithms"].items()) {
    const std::optional<Algorithm> algorithm = algorithm_of(numbers);
    if (!algorithm) return false;
    chosen[key] = *algorithm;
  }
  impl_->shapes.clear();
  impl_->chosen = std::move(chosen);
  return true;
}

std::uint64_t product_scratch_bytes(std::int64_t tokens, std::int64_t h) {
  return kMostWorkspaceBytes + static_cast<std::uint64_t>(tokens * h) * sizeof(float);
}

}  // namespace transload::kernels::cuda
