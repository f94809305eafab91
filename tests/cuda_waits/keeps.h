// What the numbered copies of sources ask before each wait (number_waits.py). Any thread.
#pragma once

namespace cuda_waits {

struct Site {
  const char* file;
  int line;
  const char* text;
};

/// False for the wait that is left out. Notes that it was come to.
bool keeps(int site);
/// −1: none. Set while nothing runs.
void leave_out(int site);
bool was_reached(int site);

}  // namespace cuda_waits
