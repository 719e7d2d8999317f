/* The preloaded form. A program that opens libibverbs itself (NCCL's ibvsymbols.cc) finds this library's functions too. Each of these ends in
   a tail call: libc learns from the return address who looks for the next definition (RTLD_NEXT). */
#define _GNU_SOURCE
#include "form.h"
#include "real.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stddef.h>
#include <string.h>

struct named {
	const char *name;
	void *function;
};

static void *ours(void *handle, const char *name)
{
	static const struct named functions[] = {
		{"ibv_open_device", (void *)ibv_open_device},
		{"ibv_close_device", (void *)ibv_close_device},
		{"ibv_modify_qp", (void *)ibv_modify_qp},
		{"ibv_destroy_qp", (void *)ibv_destroy_qp},
		{"ibv_destroy_cq", (void *)ibv_destroy_cq},
	};

	if (handle == RTLD_NEXT || strncmp(name, "ibv_", 4))
		return NULL;
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
		if (!strcmp(functions[i].name, name))
			return functions[i].function;
	return NULL;
}

const char PRELOADED[] = "";

const char *watched_by_another(void)
{
	return NULL; /* of several preloaded libraries the first one's functions are called, and call libibverbs' */
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
