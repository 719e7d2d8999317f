/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Events at chosen packets; see rxe_events.c. */
#ifndef RXE_EVENTS_H
#define RXE_EVENTS_H

#include <linux/types.h>

struct rxe_dev;
struct rxe_pkt_info;
struct rxe_qp;
struct sk_buff;

extern bool rxe_events_armed;

int rxe_send(struct sk_buff *skb, struct rxe_pkt_info *pkt);
int rxe_events_send(struct rxe_qp *qp, struct rxe_pkt_info *pkt, struct sk_buff *skb);
bool rxe_events_receive(struct rxe_dev *rxe, struct rxe_pkt_info *pkt, struct sk_buff *skb);

#endif /* RXE_EVENTS_H */
