# install.cmake: what `cmake --install` puts where, below any prefix. Nothing of it knows where it lies: the folder may be moved
# afterwards.
include(GNUInstallDirs)

install(TARGETS dq RUNTIME)
if(TARGET dqshared)
    install(TARGETS dqshared LIBRARY)
    install(FILES lib/dq.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    file(RELATIVE_PATH dq_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
    configure_file(lib/libdq.pc.in libdq.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/libdq.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

# Pages are printed by the program that was built. Where it cannot run here, there are none.
if(CMAKE_CROSSCOMPILING)
    message(STATUS "install: dq does not run on this machine: no pages of the manual, no completion")
else()
    set(dq_pages ${PROJECT_BINARY_DIR}/pages)
    add_custom_command(
        OUTPUT ${dq_pages}.stamp
        COMMAND ${CMAKE_COMMAND} -DDQ=$<TARGET_FILE:dq> -DOUT=${dq_pages} -P ${CMAKE_CURRENT_LIST_DIR}/pages.cmake
        COMMAND ${CMAKE_COMMAND} -E touch ${dq_pages}.stamp
        DEPENDS dq ${CMAKE_CURRENT_LIST_DIR}/pages.cmake
        VERBATIM)
    add_custom_target(pages ALL DEPENDS ${dq_pages}.stamp)
    set(dq_pages_target pages)
    install(DIRECTORY ${dq_pages}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
    install(FILES ${dq_pages}/bash/dq DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES ${dq_pages}/zsh/_dq DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
endif()

install(FILES README.md CHANGELOG.md LICENSE FORMAT.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
