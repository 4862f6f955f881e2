# deb_tree.cmake: what CPack has installed for the package becomes what Debian expects: the folder of documents has the package's
# name, copyright and changelog lie there, pages and changelog are compressed, and zsh finds its function.
cmake_minimum_required(VERSION 3.25)
set(share ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr/share)
set(doc ${share}/doc/${CPACK_PACKAGE_NAME})
find_program(GZIP gzip REQUIRED)

file(RENAME ${share}/doc/dq ${doc})
file(MAKE_DIRECTORY ${share}/zsh/vendor-completions)
file(RENAME ${share}/zsh/site-functions/_dq ${share}/zsh/vendor-completions/_dq)
file(REMOVE_RECURSE ${share}/zsh/site-functions)

# The licence, once.
file(READ ${doc}/LICENSE license)
string(STRIP "${license}" license)
string(REGEX REPLACE "^MIT License\n\nCopyright \\(c\\) ([^\n]*)\n\n" "" terms "${license}")
set(owner "${CMAKE_MATCH_1}")
if(owner STREQUAL "")
    message(FATAL_ERROR "LICENSE does not begin as the MIT License does")
endif()
string(REPLACE "\n\n" "\n.\n" terms "${terms}")
string(REPLACE "\n" "\n " terms "${terms}")
file(WRITE ${doc}/copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: dq

Files: *
Copyright: ${owner}
License: Expat
 ${terms}
")
file(REMOVE ${doc}/LICENSE)

string(TIMESTAMP day "%a, %d %b %Y %H:%M:%S +0000" UTC) # that of SOURCE_DATE_EPOCH where it is set
file(WRITE ${doc}/changelog "${CPACK_PACKAGE_NAME} (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}; CHANGELOG.md says what is new.

 -- ${CPACK_DEBIAN_PACKAGE_MAINTAINER}  ${day}
")
file(GLOB pages ${share}/man/man1/*.1)
execute_process(COMMAND ${GZIP} -9n ${pages} ${doc}/changelog COMMAND_ERROR_IS_FATAL ANY)
