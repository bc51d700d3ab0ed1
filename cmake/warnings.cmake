# Warnings and code generation shared by everything compiled here. -ffp-contract=off: a fused multiply-add is written,
# never granted by the compiler, so results do not depend on its mood.
add_library(espalier_warnings INTERFACE)
target_compile_options(espalier_warnings INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef
    -ffp-contract=off -fno-math-errno -fno-trapping-math
    $<$<C_COMPILER_ID:Clang>:-Wno-pass-failed> # an unroll pragma is a hint: where it cannot be followed, code is only slower
    $<$<BOOL:${ESPALIER_WERROR}>:-Werror>)
if(ESPALIER_SANITIZE)
    add_compile_options(-fsanitize=${ESPALIER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
    add_link_options(-fsanitize=${ESPALIER_SANITIZE})
    # The instrumentation hides assignments from gcc's flow analysis; the release build keeps the warning, and valgrind looks.
    target_compile_options(espalier_warnings INTERFACE $<$<C_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()
