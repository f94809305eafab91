// The page's style sheet: light, dark (as the reader's system asks) and paper; one column at a phone's width.
#pragma once

namespace transload::report {

extern const char* const kPageStyle;

}  // namespace transload::report
