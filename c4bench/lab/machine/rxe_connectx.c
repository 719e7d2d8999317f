// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A device that behaves to its host as a ConnectX-6 does, where rxe differs:
 *
 *  - it sends again what is not answered at the times that were measured on
 *    ConnectX-6, firmware 20.43.4100, by others (MIT licence,
 *    github.com/unionxic/rdma-fault-characterization): with the floor of its
 *    acknowledgement time-outs, or without. They are on a clock of its own,
 *    and not in ticks of the kernel's. Seven retries are seven;
 *  - what it sends while its link is down is lost, and no error;
 *  - a queue pair cannot go to SQD;
 *  - the host's tc does not touch its packets (net/core/dev.c);
 *  - its counters have mlx5's names. What rxe does not do is not counted;
 *  - it names itself as mlx5 does, and can be made to give all its packets one
 *    traffic class, as by tc/1/traffic_class of NVIDIA's driver package.
 *
 * Devices are made so while the parameter `connectx` is set. `floor_off` takes
 * `NETDEV 1` or `NETDEV 0`, with an interface of the caller's namespace.
 */

#include <linux/if_macvlan.h>
#include <linux/ip.h>
#include <linux/moduleparam.h>
#include <linux/netdevice.h>
#include <linux/nsproxy.h>
#include <net/inet_ecn.h>
#include <rdma/ib_verbs.h>

#include "rxe.h"
#include "rxe_net.h"
#include "rxe_connectx.h"
#include "rxe_hw_counters.h"

static bool connectx;

/* The host's interface of such a NIC is a macvlan on the NIC's port. */
static int connectx_set(const char *text, const struct kernel_param *kp)
{
	static bool macvlan;
	int err = param_set_bool(text, kp);

	if (err || !connectx || macvlan)
		return err;
	macvlan = true;
	return macvlan_init_module();
}

static const struct kernel_param_ops connectx_ops = { .set = connectx_set, .get = param_get_bool };
module_param_cb(connectx, &connectx_ops, &connectx, 0600);

bool rxe_connectx_next(void)
{
	return READ_ONCE(connectx);
}

static int floor_set(const char *text, const struct kernel_param *kp)
{
	struct net_device *ndev;
	struct rxe_dev *rxe;
	char name[IFNAMSIZ];
	unsigned int off;

	if (sscanf(text, "%15s %u", name, &off) != 2 || off > 1)
		return -EINVAL;
	ndev = dev_get_by_name(current->nsproxy->net_ns, name);
	if (!ndev)
		return -ENODEV;
	rxe = rxe_get_dev_from_net(ndev);
	dev_put(ndev);
	if (!rxe)
		return -ENODEV;
	WRITE_ONCE(rxe->floor_off, off);
	ib_device_put(&rxe->ib_dev);
	return 0;
}

static const struct kernel_param_ops floor_ops = { .set = floor_set };
module_param_cb(floor_off, &floor_ops, NULL, 0200);

static ssize_t hca_type_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "MT%u\n", PCI_DEVICE_ID_CONNECTX_6);
}
static DEVICE_ATTR_RO(hca_type);

static ssize_t hw_rev_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "0\n");
}
static DEVICE_ATTR_RO(hw_rev);

static ssize_t board_id_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "MT_0000000223\n");
}
static DEVICE_ATTR_RO(board_id);

static ssize_t traffic_class_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct rxe_dev *rxe = rdma_device_to_drv_device(dev, struct rxe_dev, ib_dev);

	return rxe->forced_class ? sysfs_emit(buf, "Global tclass=%d\n", rxe->forced_class - 1) : 0;
}

static ssize_t traffic_class_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t count)
{
	struct rxe_dev *rxe = rdma_device_to_drv_device(dev, struct rxe_dev, ib_dev);
	int class;

	if (kstrtoint(buf, 0, &class) || class < -1 || class > 255)
		return -EINVAL;
	WRITE_ONCE(rxe->forced_class, class + 1);
	return count;
}
static DEVICE_ATTR_RW(traffic_class);

static struct attribute *device_attributes[] = {
	&dev_attr_hca_type.attr,
	&dev_attr_hw_rev.attr,
	&dev_attr_board_id.attr,
	&dev_attr_traffic_class.attr,
	NULL
};

static const struct attribute_group device_group = { .attrs = device_attributes };

static void get_fw_str(struct ib_device *dev, char *text)
{
	snprintf(text, IB_FW_VERSION_NAME_MAX, "20.43.4100");
}

const struct ib_device_ops rxe_connectx_ops = {
	.device_group	= &device_group,
	.get_dev_fw_str	= get_fw_str,
};

/* The traffic class of a packet: that of its queue pair, unless the device has one for all. */
u8 rxe_connectx_class(const struct rxe_dev *rxe, u8 asked)
{
	int class = READ_ONCE(rxe->forced_class);

	return class ? class - 1 : asked;
}

/* Early retransmissions, us since the first packet, and what they save of the regular time-outs. */
static const u32 early_us[] = {
	12000, 38000, 71000, 138000, 239000, 440000, 977000, 1783000, 3930000, 8225000,
};

#define FLOOR		16
#define SAVED_FLOOR_US	96400
#define SAVED_ABOVE_US	365000
#define ONE_17_US	977100	/* a single retry with a timeout of 17 */
#define NO_RETRY_US	1514000	/* between the times that were measured */

/* Without the floor: the first time-out, in thousandths of the nominal one, by exponent. */
static const u16 first_permille[] = {
	1120, 1120, 1120, 1120, 1120, 1120, 1120, 1120, 1120, 1070, 1020,
	893, 765, 666, 566, 604, 642, 821, 825, 829, 833,
};

static u64 regular_us(const struct rxe_qp *qp, unsigned int number)
{
	unsigned int exponent = max_t(unsigned int, qp->attr.timeout, FLOOR);
	u64 interval_us = (8192ULL << exponent) / 1000;

	if (!qp->attr.retry_cnt)
		return NO_RETRY_US;
	if (exponent == FLOOR)
		return number * interval_us - SAVED_FLOOR_US;
	if (exponent == FLOOR + 1 && number == 1)
		return ONE_17_US;
	return number * interval_us - SAVED_ABOVE_US;
}

/* ns from the first packet that is not answered to a time-out, of which 0 is the first. Gives up after the last. */
static u64 due_ns(const struct rxe_qp *qp, unsigned int step, bool *last)
{
	unsigned int early = 0, number;
	u64 nominal_ns, first_ns;

	if (READ_ONCE(to_rdev(qp->ibqp.device)->floor_off)) {
		number = min_t(unsigned int, qp->attr.timeout, ARRAY_SIZE(first_permille) - 1);
		nominal_ns = 4096ULL << qp->attr.timeout;
		first_ns = nominal_ns / 1000 * first_permille[number];
		*last = step > qp->attr.retry_cnt;
		return first_ns + step * nominal_ns;
	}
	while (early < ARRAY_SIZE(early_us) && early_us[early] + 1000 < regular_us(qp, 1))
		early++;
	*last = false;
	if (step < early)
		return early_us[step] * 1000ULL;
	number = step - early + 1;
	*last = number >= qp->attr.retry_cnt;
	return regular_us(qp, number) * 1000;
}

static u64 due_at(const struct rxe_qp *qp, bool *last)
{
	return qp->ack->from + due_ns(qp, qp->ack->step, last);
}

static void start(struct rxe_qp *qp)
{
	bool last;

	hrtimer_start(&qp->ack->timer, ns_to_ktime(due_at(qp, &last)), HRTIMER_MODE_ABS);
}

/* An answer moves only `from`: the timer finds that it is early, and goes on. */
static enum hrtimer_restart fired(struct hrtimer *timer)
{
	struct rxe_ack_timer *ack = container_of(timer, struct rxe_ack_timer, timer);
	struct rxe_qp *qp = ack->qp;
	unsigned long flags;
	bool last;
	u64 due = due_at(qp, &last);

	if (ktime_get_ns() < due) {
		hrtimer_set_expires(timer, ns_to_ktime(due));
		return HRTIMER_RESTART;
	}
	if (!rxe_get(qp))
		return HRTIMER_NORESTART;
	spin_lock_irqsave(&qp->state_lock, flags);
	if (qp->valid) {
		qp->comp.timeout = 1;
		rxe_sched_task(&qp->send_task);
	}
	spin_unlock_irqrestore(&qp->state_lock, flags);
	rxe_put(qp);
	return HRTIMER_NORESTART;
}

int rxe_ack_init(struct rxe_qp *qp)
{
	qp->ack = kzalloc(sizeof(*qp->ack), GFP_KERNEL);
	if (!qp->ack)
		return -ENOMEM;
	qp->ack->qp = qp;
	hrtimer_setup(&qp->ack->timer, fired, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
	return 0;
}

void rxe_ack_free(struct rxe_qp *qp)
{
	if (!qp->ack)
		return;
	hrtimer_cancel(&qp->ack->timer);
	kfree(qp->ack);
	qp->ack = NULL;
}

void rxe_ack_reset(struct rxe_qp *qp)
{
	if (!qp->ack)
		return;
	hrtimer_cancel(&qp->ack->timer);
	qp->ack->step = 0;
	qp->comp.timeout = 0;
	qp->comp.started_retry = 0;
}

/* A packet has left: the first of all that wait for an answer starts the time-out. */
void rxe_ack_sent(struct rxe_qp *qp, u32 psn)
{
	if (!qp->attr.timeout)
		return;
	if (psn == qp->comp.psn && !qp->comp.started_retry) {
		qp->ack->from = ktime_get_ns();
		qp->ack->step = 0;
	}
	if (!hrtimer_active(&qp->ack->timer))
		start(qp);
}

/* The peer has answered, and asks for a pause where it has no buffer. */
void rxe_ack_answered(struct rxe_qp *qp, u64 pause_ns)
{
	bool restart;

	if (!qp->ack || !qp->attr.timeout)
		return;
	restart = qp->ack->step || !hrtimer_active(&qp->ack->timer);
	qp->ack->from = ktime_get_ns() + pause_ns;
	qp->ack->step = 0;
	if (restart)
		start(qp);
}

/* Whether it is time, and not only that the timer has fired; if it is not, the timer goes on. */
bool rxe_ack_due(struct rxe_qp *qp)
{
	bool last;

	if (!qp->req.need_retry && ktime_get_ns() >= due_at(qp, &last))
		return true;
	start(qp);
	return false;
}

/* Leave in retry_cnt whether the completer gives up (0) or sends again (7, of which it takes none). */
void rxe_ack_timed_out(struct rxe_qp *qp)
{
	struct rxe_dev *rxe = to_rdev(qp->ibqp.device);
	bool last;

	due_at(qp, &last);
	qp->comp.retry_cnt = last ? 0 : 7;
	if (last)
		return;
	if (due_ns(qp, qp->ack->step, &last) < regular_us(qp, 1) * 1000 && !rxe->floor_off)
		atomic64_inc(&rxe->adaptive_retransmissions);
	else
		atomic64_inc(&rxe->ack_timeouts);
	qp->ack->step++;
	start(qp);
}

void rxe_connectx_count_marked(struct rxe_dev *rxe, const struct sk_buff *skb)
{
	if (rxe->connectx && skb->protocol == htons(ETH_P_IP) && INET_ECN_is_ce(ip_hdr(skb)->tos))
		atomic64_inc(&rxe->marked_packets);
}

static const struct rdma_stat_desc descs[] = {
	{ .name = "duplicate_request" },
	{ .name = "local_ack_timeout_err" },
	{ .name = "np_ecn_marked_roce_packets" },
	{ .name = "out_of_buffer" },
	{ .name = "out_of_sequence" },
	{ .name = "packet_seq_err" },
	{ .name = "req_rnr_retries_exceeded" },
	{ .name = "req_transport_retries_exceeded" },
	{ .name = "rnr_nak_retry_err" },
	{ .name = "roce_adp_retrans" },
};

struct rdma_hw_stats *rxe_connectx_alloc_stats(void)
{
	return rdma_alloc_hw_stats_struct(descs, ARRAY_SIZE(descs), RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

int rxe_connectx_get_stats(struct rxe_dev *rxe, struct rdma_hw_stats *stats)
{
	const atomic64_t *own = rxe->stats_counters;
	const atomic64_t *in_order[ARRAY_SIZE(descs)] = {
		&own[RXE_CNT_DUP_REQ],
		&rxe->ack_timeouts,
		&rxe->marked_packets,
		&own[RXE_CNT_SND_RNR],
		&own[RXE_CNT_OUT_OF_SEQ_REQ],
		&own[RXE_CNT_RCV_SEQ_ERR],
		&own[RXE_CNT_RNR_RETRY_EXCEEDED],
		&own[RXE_CNT_RETRY_EXCEEDED],
		&own[RXE_CNT_RCV_RNR],
		&rxe->adaptive_retransmissions,
	};
	unsigned int number;

	for (number = 0; number < ARRAY_SIZE(descs); number++)
		stats->value[number] = atomic64_read(in_order[number]);
	return ARRAY_SIZE(descs);
}
