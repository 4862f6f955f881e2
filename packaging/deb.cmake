# deb.cmake: CPack's settings of the Debian package; `cmake --build build --target package` makes it. Debian has a package dq, with a
# program /usr/bin/dq (a DNS client): this one has another name and does not lie beside it.
set(DQ_MAINTAINER "dq maintainers <maintainers@dq.invalid>" CACHE STRING "Maintainer of the Debian package")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME dq-diff)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${DQ_MAINTAINER}")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_LIST_DIR}/triggers)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION TRUE)
set(CPACK_DEBIAN_PACKAGE_CONFLICTS dq)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "low-bit quantization of Differential Transformers")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "dq quantizes the weights, attention logits and KV caches of Differential
Transformers and of plain ones, and measures what is lost by it.

It reads folders of safetensors and GGUF files, writes HDF5 containers,
and needs no Python.")
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/deb_tree.cmake)
set(CPACK_DQ_SOURCE ${PROJECT_SOURCE_DIR})
include(CPack)
