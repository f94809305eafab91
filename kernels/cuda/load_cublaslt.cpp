#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"
#include "kernels/cuda/cublaslt.h"

namespace transload::kernels::cuda {
namespace {

#define TRANSLOAD_TEXT_OF(x) #x
#define TRANSLOAD_TEXT(x) TRANSLOAD_TEXT_OF(x)
constexpr const char* kLibrary = "libcublasLt.so." TRANSLOAD_TEXT(CUBLAS_VER_MAJOR);
#undef TRANSLOAD_TEXT
#undef TRANSLOAD_TEXT_OF

void* open_library() {
  if (void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) return library;
  throw Error(
      fmt::format("--device cuda needs cuBLASLt for its matrix products: {}. Install CUDA's libraries, or name their "
                  "folder in LD_LIBRARY_PATH.",
                  ::dlerror()));
}

template <class Function>
void take(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) throw Error(fmt::format("{} has no function {}.", kLibrary, name));
}

CublasLt load() {
  void* const library = open_library();
  CublasLt t;
  take(library, "cublasLtCreate", t.create);
  take(library, "cublasLtDestroy", t.destroy);
  take(library, "cublasLtGetVersion", t.version);
  take(library, "cublasLtGetStatusName", t.status_name);
  take(library, "cublasLtMatmulDescCreate", t.desc_create);
  take(library, "cublasLtMatmulDescDestroy", t.desc_destroy);
  take(library, "cublasLtMatmulDescSetAttribute", t.desc_set);
  take(library, "cublasLtMatrixLayoutCreate", t.layout_create);
  take(library, "cublasLtMatrixLayoutDestroy", t.layout_destroy);
  take(library, "cublasLtMatrixLayoutSetAttribute", t.layout_set);
  take(library, "cublasLtMatmulPreferenceCreate", t.preference_create);
  take(library, "cublasLtMatmulPreferenceDestroy", t.preference_destroy);
  take(library, "cublasLtMatmulPreferenceSetAttribute", t.preference_set);
  take(library, "cublasLtMatmulAlgoGetHeuristic", t.heuristic);
  take(library, "cublasLtMatmul", t.matmul);
  return t;
}

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt table = load();  // stays loaded
  return table;
}

}  // namespace transload::kernels::cuda
