# commit.cmake: writes the header OUT with the commit that SOURCE is at, or with COMMIT where that is given.
#   cmake -DSOURCE=FOLDER -DOUT=commit_text.h [-DCOMMIT=TEXT] [-DGIT=PROGRAM] -P commit.cmake
# Runs at every build; OUT changes only with the commit. SOURCE must be the top of a checkout: a source archive that was
# unpacked inside another repository has no commit.
cmake_minimum_required(VERSION 3.25)
set(text "${COMMIT}")
if(text STREQUAL "" AND GIT)
    set(ENV{GIT_OPTIONAL_LOCKS} 0)
    execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --show-prefix HEAD
        OUTPUT_VARIABLE found RESULT_VARIABLE status ERROR_QUIET)
    if(status EQUAL 0 AND found MATCHES "^\n([0-9a-f]+)\n$") # no folders between, and the commit
        string(SUBSTRING "${CMAKE_MATCH_1}" 0 12 text)
        execute_process(COMMAND ${GIT} -C ${SOURCE} status --porcelain --untracked-files=no
            OUTPUT_VARIABLE changes RESULT_VARIABLE status ERROR_QUIET)
        if(NOT status EQUAL 0)
            message(FATAL_ERROR "${SOURCE}: git knows the commit, but not what was changed since")
        elseif(NOT changes STREQUAL "")
            string(APPEND text "-dirty")
        endif()
    endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define DQ_COMMIT_TEXT \"${text}\"\n" @ONLY)
