// SPDX-License-Identifier: Apache-2.0
// Included before everything in the libraries: they are part of the gpuwhy binary and must run with an older glibc than the
// one they are built with, down to 2.27. Names the version of each function that all of them have.
#pragma once

#if defined(__x86_64__)
#define OLDER(name, version) __asm__(".symver " #name "," #name "@GLIBC_" version)
#else
#define OLDER(name, version) __asm__(".symver " #name "," #name "@GLIBC_2.17")
#endif

OLDER(dladdr, "2.2.5");
OLDER(dlopen, "2.2.5");
OLDER(dlsym, "2.2.5");
OLDER(pthread_create, "2.2.5");
OLDER(pthread_join, "2.2.5");
OLDER(pthread_key_create, "2.2.5");
OLDER(pthread_key_delete, "2.2.5");
OLDER(pthread_mutex_consistent, "2.12");
OLDER(pthread_mutexattr_destroy, "2.2.5");
OLDER(pthread_mutexattr_init, "2.2.5");
OLDER(pthread_mutexattr_setpshared, "2.2.5");
OLDER(pthread_mutexattr_setrobust, "2.12");
OLDER(pthread_mutexattr_settype, "2.2.5");
OLDER(pthread_setspecific, "2.2.5");
