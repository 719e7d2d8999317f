/* A program that opens libibverbs itself (NCCL's ibvsymbols.cc) finds this library's functions too: ../lookup.c says how. */
#define _GNU_SOURCE
#include "../real.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stddef.h>
#include <string.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

static void *ours(void *handle, const char *name)
{
	static const struct named {
		const char *name;
		void *function;
	} functions[] = {
		{"ibv_open_device", (void *)ibv_open_device},
		{"ibv_close_device", (void *)ibv_close_device},
		{"ibv_alloc_pd", (void *)ibv_alloc_pd},
		{"ibv_dealloc_pd", (void *)ibv_dealloc_pd},
		{"ibv_reg_mr", (void *)ibv_reg_mr},
		{"ibv_reg_mr_iova", (void *)ibv_reg_mr_iova},
		{"ibv_reg_mr_iova2", (void *)ibv_reg_mr_iova2},
		{"ibv_reg_dmabuf_mr", (void *)ibv_reg_dmabuf_mr},
		{"ibv_rereg_mr", (void *)ibv_rereg_mr},
		{"ibv_dereg_mr", (void *)ibv_dereg_mr},
		{"ibv_create_cq", (void *)ibv_create_cq},
		{"ibv_resize_cq", (void *)ibv_resize_cq},
		{"ibv_destroy_cq", (void *)ibv_destroy_cq},
		{"ibv_create_srq", (void *)ibv_create_srq},
		{"ibv_destroy_srq", (void *)ibv_destroy_srq},
		{"ibv_create_qp", (void *)ibv_create_qp},
		{"ibv_modify_qp", (void *)ibv_modify_qp},
		{"ibv_query_qp", (void *)ibv_query_qp},
		{"ibv_destroy_qp", (void *)ibv_destroy_qp},
		{"ibv_get_async_event", (void *)ibv_get_async_event},
	};

	if (handle == RTLD_NEXT || strncmp(name, "ibv_", 4))
		return NULL;
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
		if (!strcmp(functions[i].name, name))
			return functions[i].function;
	return NULL;
}

void *dlsym(void *restrict handle, const char *restrict name)
{
	void *own = ours(handle, name);

	return own ? own : real_dlsym()(handle, name);
}

void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version)
{
	void *own = ours(handle, name);

	return own ? own : real_dlvsym()(handle, name, version);
}
