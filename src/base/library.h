// A shared library that is loaded when it is first needed and then stays: a program starts without it.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "base/error.h"

namespace transload {

class Library {
 public:
  /// Error where it is not there. `needed`: what for, a clause.
  Library(const char* file, const std::string& needed) : file_(file), handle_(::dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr)
      throw Error(fmt::format("{}: {}. Install it, or name its folder in LD_LIBRARY_PATH.", needed, ::dlerror()));
  }
  /// Error where the library has no such function.
  template <class Function>
  void take(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(::dlsym(handle_, name));
    if (function == nullptr) throw Error(fmt::format("{} has no function {}.", file_, name));
  }

 private:
  const char* file_;
  void* handle_;
};

}  // namespace transload
