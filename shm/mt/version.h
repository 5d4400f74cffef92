/* version.h: the release, and the version of what lies in shared memory. */
#ifndef LIBMT_VERSION_H
#define LIBMT_VERSION_H

/* clang-format off */

#define MT_VERSION "0.2.0"
#define MT_ABI 24

/* clang-format on */

#endif
