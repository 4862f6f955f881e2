# carry.cmake: packs FILES, which lie below the working directory, into OUT (.tar.xz) under their names there, and says
# how large it is; above MOST_MIB it fails and leaves none. The same files give the same bytes. The programs hold
# the same libraries: level 9 has a dictionary of 64 MiB, which keeps them once.
#   cmake "-DFILES=NAME;NAME" -DOUT=FILE -DMOST_MIB=N -P carry.cmake
foreach(name FILES OUT MOST_MIB)
    if("${${name}}" STREQUAL "")
        message(FATAL_ERROR "carry.cmake: -D${name}= is missing")
    endif()
endforeach()
set(names)
foreach(file IN LISTS FILES)
    get_filename_component(file ${file} ABSOLUTE)
    file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${file}) # in a script, the working directory
    if(name MATCHES "^\\.\\./" OR NOT EXISTS ${file})
        message(FATAL_ERROR "${file}: no file below ${CMAKE_CURRENT_SOURCE_DIR}")
    endif()
    list(APPEND names ${name})
endforeach()
list(SORT names)

file(ARCHIVE_CREATE OUTPUT ${OUT} PATHS ${names} FORMAT gnutar COMPRESSION XZ COMPRESSION_LEVEL 9
    MTIME "2000-01-01 00:00:00 UTC")
file(SIZE ${OUT} bytes)
list(LENGTH names n)
math(EXPR tenths "(${bytes} * 10 + 1048575) / 1048576")
math(EXPR mib "${tenths} / 10")
math(EXPR tenth "${tenths} % 10")
math(EXPR most "${MOST_MIB} * 1048576")
if(bytes GREATER most)
    file(REMOVE ${OUT})
    message(FATAL_ERROR "${OUT}: ${n} files are ${mib}.${tenth} MiB (expected at most ${MOST_MIB}). Carry fewer programs")
endif()
message("${OUT}: ${n} files, ${mib}.${tenth} MiB")
