/* A program that opens libibverbs itself (NCCL's ibvsymbols.cc) finds a preloaded library's functions too. dlsym and dlvsym end in a
   tail call: libc learns from the return address who looks for the next definition (RTLD_NEXT). */
#define _GNU_SOURCE
#include "lookup.h"

#include "real.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static void *ours(void *handle, const char *name)
{
	if (handle == RTLD_NEXT || strncmp(name, "ibv_", 4))
		return NULL;
	for (const struct replaced *one = REPLACED; one->name; one++)
		if (!strcmp(one->name, name))
			return one->function;
	return NULL;
}

void *dlsym(void *restrict handle, const char *restrict name)
{
	void *own = ours(handle, name);

	return own ? own : real_dlsym()(handle, name);
}

void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version)
{
	void *own = strcmp(version, VERBS_VERSION) ? NULL : ours(handle, name);

	return own ? own : real_dlvsym()(handle, name, version);
}
