// A folder of a test's own, removed at its end.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

class TempFolder {
 public:
  /// `quick`: in memory (tmpfs) where that is possible, for tests that make stores hundreds of times.
  explicit TempFolder(bool quick = false) {
    const std::string parent = std::filesystem::temp_directory_path().string();
    for (const std::string& place : {std::string(quick ? "/dev/shm" : parent), parent}) {
      std::string pattern = place + "/transload_train_XXXXXX";
      if (mkdtemp(pattern.data()) == nullptr) continue;
      path_ = pattern;
      return;
    }
    std::abort();
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path(const std::string& name) const { return (std::filesystem::path(path_) / name).string(); }
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

 private:
  std::string path_;
};

inline std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Runs fn and returns what its `E` says; fails the test when there is none.
#define MESSAGE_OF(E, expression)        \
  [&]() -> std::string {                 \
    try {                                \
      static_cast<void>(expression);     \
    } catch (const E& error) {           \
      return error.what();               \
    }                                    \
    FAIL("no " #E " from " #expression); \
    return {};                           \
  }()
