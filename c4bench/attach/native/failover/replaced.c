/* What this library has in place of libibverbs' functions. */
#include "../lookup.h"

#include <infiniband/verbs.h>
#include <stddef.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

const struct replaced REPLACED[] = {
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
	{"ibv_modify_srq", (void *)ibv_modify_srq},
	{"ibv_destroy_srq", (void *)ibv_destroy_srq},
	{"ibv_create_qp", (void *)ibv_create_qp},
	{"ibv_modify_qp", (void *)ibv_modify_qp},
	{"ibv_query_qp", (void *)ibv_query_qp},
	{"ibv_destroy_qp", (void *)ibv_destroy_qp},
	{"ibv_get_async_event", (void *)ibv_get_async_event},
	{NULL, NULL},
};
