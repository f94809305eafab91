# transload_options(target): warnings are errors, fixed floating-point rules, sanitizers.
function(transload_options target)
  # -Wno-restrict: g++ 12 sees overlapping strings that are not there (GCC bug 105651).
  set(options -Wall -Wextra -Wshadow -Wno-unused-parameter -Wno-missing-field-initializers -Wno-restrict -Werror
              -ffp-contract=off -fno-math-errno -fno-trapping-math)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${options}>")
  if(TRANSLOAD_SANITIZE)
    string(REPLACE ";" "," list "${TRANSLOAD_SANITIZE}")
    # With sanitizers g++ 12 takes parts of std::regex and std::function for uninitialized.
    set(options -fsanitize=${list} -fno-omit-frame-pointer -fno-sanitize-recover=all -Wno-maybe-uninitialized)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${options}>")
    target_link_options(${target} PRIVATE -fsanitize=${list})
  endif()
endfunction()

# transload_cuda_options(target): warnings are errors, nothing is contracted; registers are printed, spills are errors.
function(transload_cuda_options target)
  set(options -fmad=false -Werror=all-warnings
              -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter,-Wno-missing-field-initializers,-Werror
              -Xptxas=-v,--warn-on-spills,--warn-on-local-memory-usage)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${options}>")
  # By a path without the folder's name, which may have spaces: compilers run in the build folder.
  configure_file(${CMAKE_SOURCE_DIR}/scripts/cuda_registers ${CMAKE_BINARY_DIR}/cuda_registers COPYONLY)
  set_target_properties(${target} PROPERTIES RULE_LAUNCH_COMPILE ./cuda_registers)
endfunction()

# transload_room(name DIR folder LIBS …): the library transload_<name> of all sources in the folder.
function(transload_room name)
  cmake_parse_arguments(ROOM "" "DIR" "LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${ROOM_DIR}/*.cpp)
  if(NOT sources)
    file(WRITE ${CMAKE_BINARY_DIR}/empty_${name}.cpp "")
    set(sources ${CMAKE_BINARY_DIR}/empty_${name}.cpp)
  endif()
  add_library(transload_${name} STATIC ${sources})
  target_include_directories(transload_${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(transload_${name} PUBLIC ${ROOM_LIBS} Threads::Threads)
  transload_options(transload_${name})
endfunction()

# transload_test(name LIBS …): test_<name> of tests/<name>/*.cpp; each Catch2 test case is a CTest test.
function(transload_test name)
  cmake_parse_arguments(TEST "" "" "LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${name}/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(test_${name} ${sources})
  target_link_libraries(test_${name} PRIVATE transload_catch_main ${TEST_LIBS})
  target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(test_${name} PRIVATE TRANSLOAD_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  transload_options(test_${name})
  catch_discover_tests(test_${name} TEST_PREFIX "${name}: " PROPERTIES TIMEOUT 600)
endfunction()
