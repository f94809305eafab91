#include "cli/lost_rank.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace transload::cli {

namespace fs = std::filesystem;

namespace {

fs::path note_in(const std::string& run) { return fs::path(run) / "lost_rank.txt"; }

}  // namespace

void keep_lost_rank(const std::string& run, const std::string& what) noexcept {
  try {
    const fs::path note = note_in(run), mine = note.string() + "." + std::to_string(::getpid());
    std::ofstream(mine) << what << "\n";
    fs::rename(mine, note);
  } catch (...) {
    return;
  }
}

std::string take_lost_rank(const std::string& run) {
  std::ifstream in(note_in(run));
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  while (text.ends_with('\n')) text.pop_back();
  std::error_code ignored;
  fs::remove(note_in(run), ignored);
  return text;
}

}  // namespace transload::cli
