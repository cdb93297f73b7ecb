# cmake --install BUILD --prefix DIR: the program, the library of the C ABI with what finds it, and the licence.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# A tarball brings libraries that a machine may lack; elsewhere there is no such folder, and the system's are found.
set_target_properties(quire PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/quire")
target_link_options(quire PRIVATE LINKER:--disable-new-dtags)  # where these libraries look for each other, too
install(TARGETS quire RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
if(QUIRE_MPI)  # in no package: it needs the machine's MPI
  install(TARGETS quire_mpi LIBRARY DESTINATION lib/quire COMPONENT mpi)
endif()
if(QUIRE_RAY)  # in no package either: it needs the machine's Ray, of one version
  install(TARGETS quire_ray LIBRARY DESTINATION lib/quire COMPONENT ray)
endif()
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)

if(QUIRE_BUILD_LIBRARY)
  install(TARGETS quire_shared EXPORT quire LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
  install(FILES include/quire/quire.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quire COMPONENT library)
  # find_package(quire) and quire::quire
  set(quire_package ${CMAKE_INSTALL_LIBDIR}/cmake/quire)
  install(EXPORT quire NAMESPACE quire:: FILE quireConfig.cmake DESTINATION ${quire_package} COMPONENT library)
  write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/quireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/quireConfigVersion.cmake DESTINATION ${quire_package} COMPONENT library)
  # pkg-config quire, from wherever it was put
  file(RELATIVE_PATH quire_prefix /usr/${CMAKE_INSTALL_LIBDIR}/pkgconfig /usr)
  file(RELATIVE_PATH quire_libdir /usr /usr/${CMAKE_INSTALL_LIBDIR})
  configure_file(cmake/quire.pc.in ${CMAKE_CURRENT_BINARY_DIR}/quire.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/quire.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
endif()
