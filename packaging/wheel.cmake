# wheel.cmake: what a wheel holds beside python/dq: the program, the library, OpenMP's runtime, and the licences of what is in them.
set_target_properties(dq PROPERTIES INSTALL_RPATH "$ORIGIN/..")
set_target_properties(dqshared PROPERTIES INSTALL_RPATH "$ORIGIN" VERSION "" SOVERSION "" NO_SONAME ON)
install(TARGETS dq RUNTIME DESTINATION dq/bin)
install(TARGETS dqshared LIBRARY DESTINATION dq)
install(FILES ${dq_gomp} DESTINATION dq RENAME libgomp.so.1)

# Debian's packages say in /usr/share/doc/PACKAGE/copyright under which terms the archive may be given away.
option(DQ_LICENSES "A wheel holds the licences of what is in it" ON)
if(DQ_LICENSES)
    set(dq_bundled ${dq_gomp} ${HDF5_C_LIBRARIES} ${JANSSON_LINK_LIBRARIES} ${PCRE2_LINK_LIBRARIES} ${UTF8PROC_LINK_LIBRARIES}
        ${CRYPTO_LINK_LIBRARIES})
endif()
foreach(file ${dq_bundled})
    if(file MATCHES "^-") # an option of the linker
        continue()
    endif()
    execute_process(COMMAND dpkg-query -S ${file} OUTPUT_VARIABLE owner ERROR_QUIET RESULT_VARIABLE failed)
    string(REGEX REPLACE ":.*" "" owner "${owner}")
    if(failed OR NOT EXISTS /usr/share/doc/${owner}/copyright)
        message(SEND_ERROR "${file}: dpkg does not know it, so the wheel would lack its licence. -DDQ_LICENSES=OFF makes a wheel "
            "that is not for others.")
    else()
        install(FILES /usr/share/doc/${owner}/copyright DESTINATION dq/licenses RENAME ${owner}.txt)
    endif()
endforeach()
