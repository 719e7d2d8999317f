/* The functions that ours stand before. */
#pragma once

#pragma GCC visibility push(hidden)

/* The next definition of a libc function after this library; NULL where there is none. */
void *real_libc(const char *name);

/* A function of libibverbs at the version that all its users have asked for since 2006; NULL where there is none. */
#define VERBS_VERSION "IBVERBS_1.1"
void *real_verbs(const char *name);

/* One that not every libibverbs has, at whichever version. */
void *real_verbs_newer(const char *name);

/* libc's own dlsym and dlvsym, which ours end in. */
typedef void *dlsym_function(void *handle, const char *name);
typedef void *dlvsym_function(void *handle, const char *name, const char *version);
dlsym_function *real_dlsym(void);
dlvsym_function *real_dlvsym(void);

#pragma GCC visibility pop
