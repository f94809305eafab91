// The count of an exception_ptr lives in libstdc++, which is not built for the thread sanitizer: it cannot see that the
// last owner, whichever thread that is, frees the exception after all others have let go.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}
