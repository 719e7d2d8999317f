/* A NIC that the program has opened, and its twin, which this library has opened with it. Of whatever there are two, number 0
   is the program's own and number 1 is of the twin. */
#pragma once

#include <infiniband/verbs.h>
#include <stdatomic.h>

#pragma GCC visibility push(hidden)

enum { OWN = 0, TWIN = 1, SIDES = 2, PARTS_AT_MOST = 64 /* of a request */ };

static inline int side_beside(int side)
{
	return side == OWN ? TWIN : OWN;
}

/* The functions of one of the two contexts. */
struct functions {
	int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
	int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
	int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
	int (*post_srq_recv)(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **);
	int (*req_notify_cq)(struct ibv_cq *, int);
};

struct nic {
	struct nic *next;
	unsigned int number; /* in this process, from 1 on */
	struct ibv_context *context[SIDES];
	struct functions of[SIDES];
	struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
	struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);
	/* Contexts of our own, by which this library learns what becomes of the ports; NULL where there is none. */
	struct ibv_context *events[SIDES];
	atomic_int down[SIDES];
	int device[SIDES]; /* the same number for the same one in this process */
	uint64_t rate[SIDES];
};

/* The NIC of a context of the program; NULL for one without a twin. */
struct nic *nic_of(struct ibv_context *context);

/* All of them. A NIC that was closed has no contexts any more. */
struct nic *nics_all(void);

/* The index of the GID of the twin's port that is of the same kind as that of `index`; -1 where it has none. */
int nic_twin_gid(const struct nic *nic, uint8_t port, int index, union ibv_gid *gid);

/* Whether this process is a child of the one that has the NICs: nothing fails over there. */
extern atomic_int in_child;

#pragma GCC visibility pop
