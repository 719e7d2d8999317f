/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* A device that answers for a ConnectX-6; see rxe_connectx.c. */
#ifndef RXE_CONNECTX_H
#define RXE_CONNECTX_H

#include <linux/hrtimer.h>
#include <linux/types.h>

#define PCI_VENDOR_ID_MELLANOX_IEEE	0x02c9
#define PCI_DEVICE_ID_CONNECTX_6	4123

struct rxe_dev;
struct rxe_qp;
struct sk_buff;
struct rdma_hw_stats;
struct ib_device_ops;

extern const struct ib_device_ops rxe_connectx_ops;

/* When a queue pair sends again what nobody has answered. */
struct rxe_ack_timer {
	struct hrtimer	timer;
	struct rxe_qp	*qp;
	u64		from;	/* the first packet that is not answered, or the last answer, ns */
	unsigned int	step;	/* time-outs since then */
};

bool rxe_connectx_next(void);
u8 rxe_connectx_class(const struct rxe_dev *rxe, u8 asked);
int rxe_ack_init(struct rxe_qp *qp);
void rxe_ack_free(struct rxe_qp *qp);
void rxe_ack_reset(struct rxe_qp *qp);
void rxe_ack_sent(struct rxe_qp *qp, u32 psn);
void rxe_ack_answered(struct rxe_qp *qp, u64 pause_ns);
bool rxe_ack_due(struct rxe_qp *qp);
void rxe_ack_timed_out(struct rxe_qp *qp);
void rxe_connectx_count_marked(struct rxe_dev *rxe, const struct sk_buff *skb);
struct rdma_hw_stats *rxe_connectx_alloc_stats(void);
int rxe_connectx_get_stats(struct rxe_dev *rxe, struct rdma_hw_stats *stats);

#endif /* RXE_CONNECTX_H */
