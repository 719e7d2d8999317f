/* What the library in fake_verbs.c offers besides libibverbs' functions. */
#pragma once

#include <infiniband/verbs.h>

/* A queue pair whose completions come to `cq`. */
struct ibv_qp *fake_qp(struct ibv_cq *cq, int depth, int all_signaled);

/* So many messages of so many bytes have come to it. */
void fake_receive(struct ibv_qp *qp, unsigned long messages, uint32_t bytes);

/* From now on all that it has outstanding completes with this status. */
void fake_fail(struct ibv_qp *qp, enum ibv_wc_status status, uint32_t vendor_err);

/* The attributes of the last modifications to RTR and to RTS, as the device got them. */
extern struct ibv_qp_attr fake_modified[2];

/* A connected queue pair's last other address vector: its label, in which state it came, and what was outstanding then. */
struct readdressed {
	uint32_t label;
	enum ibv_qp_state state;
	unsigned long outstanding;
};
extern struct readdressed fake_readdressed;

/* What the device says that its vendor is, and the layout of its context: set before it is opened. */
extern uint32_t fake_vendor;
extern void *fake_layout;
