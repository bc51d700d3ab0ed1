# CPU levels. A file's suffix names the instructions it may use; no other file gets such flags, so a stray instruction
# cannot reach an older CPU. Sources under kernels/x86 and kernels/arm are dropped on other machines.
set(ESP_FLAGS_avx2 -mavx2 -mfma -mf16c)
# prefetchw: part of every processor with AVX-512
set(ESP_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mprfchw)
set(ESP_FLAGS_avx512vnni ${ESP_FLAGS_avx512} -mavx512vnni)
set(ESP_FLAGS_avx512bf16 ${ESP_FLAGS_avx512} -mavx512bf16)
set(ESP_FLAGS_avx512vbmi ${ESP_FLAGS_avx512vnni} -mavx512vbmi)
set(ESP_FLAGS_avx512amx ${ESP_FLAGS_avx512vbmi} -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16)
set(ESP_FLAGS_neon "")
set(ESP_FLAGS_dotprod -march=armv8.2-a+dotprod)

function(esp_filter_cpu_sources var)
    set(list ${${var}})
    if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
        list(FILTER list EXCLUDE REGEX "/kernels/x86/|_avx[0-9a-z]+\\.c$")
    endif()
    if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
        list(FILTER list EXCLUDE REGEX "/kernels/arm/|_(neon|dotprod)\\.c$")
    endif()
    set(${var} ${list} PARENT_SCOPE)
endfunction()

function(esp_set_cpu_flags target)
    get_target_property(sources ${target} SOURCES)
    foreach(source IN LISTS sources)
        if(source MATCHES "_(avx2|avx512|avx512vnni|avx512bf16|avx512vbmi|avx512amx|neon|dotprod)\\.c$")
            set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${ESP_FLAGS_${CMAKE_MATCH_1}}")
        endif()
    endforeach()
    # Kernels under GCC's sanitizers. Where variables are, instruction by instruction, takes longer to find out of unrolled
    # kernels than everything else about them; lines are known without. The models of the tests spend most of their time in
    # vector code: beside the address sanitizer it is left to a build of kernels alone for undefined behaviour (.ci/run
    # ubsan), and what computes with plain weights is optimised, which makes a test of engine or model 2.5 times faster. The
    # other files are so unrolled that this would take minutes each.
    if(ESPALIER_SANITIZE AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
        foreach(source IN LISTS sources)
            if(source MATCHES "/kernels/")
                set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -fno-var-tracking)
            endif()
            if(source MATCHES "/kernels/(x86|arm)/" AND ESPALIER_SANITIZE MATCHES "address")
                set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=undefined)
                if(source MATCHES "/(attend|delta|dense|rows)_[a-z]+[0-9a-z]*\\.c$")
                    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -O2)
                endif()
            endif()
        endforeach()
    endif()
    # Conversions are checked everywhere but in kernels, where narrowing is the subject.
    foreach(source IN LISTS sources)
        if(NOT source MATCHES "/kernels/")
            set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -Wconversion)
        elseif(ESPALIER_FUZZ)
            # Fuzz targets are parsers. Unrolled kernels under clang's sanitizers take minutes to compile, and the ASan
            # build covers them.
            set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=all)
        endif()
    endforeach()
endfunction()

# Tells kernels.c which levels this build contains.
function(esp_define_cpu_kernels target)
    get_target_property(sources ${target} SOURCES)
    if(sources MATCHES "/kernels/x86/")
        target_compile_definitions(${target} PRIVATE ESP_HAVE_X86_KERNELS)
    endif()
    if(sources MATCHES "/kernels/arm/")
        target_compile_definitions(${target} PRIVATE ESP_HAVE_ARM_KERNELS)
    endif()
endfunction()
