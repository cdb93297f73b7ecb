// Boost.JSON as code that may lie anywhere, for our shared libraries: Debian's static archive of it may not.
#include <boost/json/src.hpp>
