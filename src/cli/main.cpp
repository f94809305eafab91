#include "cli/commands.h"

int main(int argc, char** argv) { return transload::cli::transload_main(argc, argv); }
