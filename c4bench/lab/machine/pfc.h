/* SPDX-License-Identifier: GPL-2.0 */
/* Statistics of a port with the qdisc pfc (sch_pfc.c). There are none of an interface that is no such port. */
#ifndef _NET_PFC_H
#define _NET_PFC_H

#include <linux/netdevice.h>

int pfc_statistics_count(struct net_device *dev);
void pfc_statistics_names(struct net_device *dev, u8 *names);
void pfc_statistics(struct net_device *dev, u64 *values);

#endif
