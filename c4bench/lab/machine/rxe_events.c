// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Events at chosen packets: all RoCE packets of the lab are numbered in the order in which NICs send them, and once more in
 * the order in which NICs receive them, each from 1. At a packet's number something happens to it, to the NIC or to the
 * process that owns the queue pair, exactly there.
 *
 * Written to /sys/module/rdma_rxe/parameters/packet_events:
 *
 *	count				number packets from 1, without an event
 *	EVENT:NUMBER,EVENT:NUMBER...	the same, with up to four events
 *	off				stop; NICs that are down are up again
 *
 * Events at a packet that is sent: `lost`, `duplicated`, `delayed` (past the next packet of its queue pair, or for 100 us
 * where none follows), `down-before` and `down-after` (the NIC that sends it loses its link), `killed` (the owner of the
 * queue pair that sends it gets SIGKILL once it has left), `both` (killed, and down-before). At a packet that is received:
 * `far-before` and `far-after` (the NIC that receives it loses its link). A NIC without its link sends and receives no
 * packet, at once, and finds no error in that, as hardware; its port event follows.
 *
 * /proc/rxe_packets lists the packets since, one a line:
 *
 *	sent|received NUMBER NS DEVICE QP DESTINATION_QP PSN OPCODE BYTES FATE
 *
 * NS counts from the writing. QP is 0 for a packet that is received. FATE is the event, `dark` for a packet that is lost
 * with its NIC, else `-`. Nothing of all this is there before the first writing: it would change a lab's random numbers.
 */

#include <linux/moduleparam.h>
#include <linux/netdevice.h>
#include <linux/proc_fs.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/vmalloc.h>

#include "rxe.h"
#include "rxe_events.h"

#define MOST_EVENTS	4
#define MOST_PACKETS	(1 << 16)
#define MOST_DARK	16
#define HELD_NS		100000

enum happening { NOTHING, LOST, DUPLICATED, DELAYED, DOWN_BEFORE, DOWN_AFTER, KILLED, BOTH, FAR_BEFORE, FAR_AFTER, DARK };

static const char *const names[] = {
	[NOTHING] = "-", [LOST] = "lost", [DUPLICATED] = "duplicated", [DELAYED] = "delayed",
	[DOWN_BEFORE] = "down-before", [DOWN_AFTER] = "down-after", [KILLED] = "killed", [BOTH] = "both",
	[FAR_BEFORE] = "far-before", [FAR_AFTER] = "far-after", [DARK] = "dark",
};

struct event {
	enum happening what;
	u32 number;
};

struct packet {
	u64 ns;
	u32 number, qp, destination, psn;
	u16 bytes;
	u8 opcode, received, fate;
	char device[IB_DEVICE_NAME_MAX];
};

bool rxe_events_armed;
static DEFINE_SPINLOCK(lock);			/* of all below */
static struct event events[MOST_EVENTS];
static struct packet *packets;
static u32 listed, sent, received;
static u64 started;
static struct { struct rxe_dev *rxe; struct net_device *ndev; } dark[MOST_DARK];
static int darkened;
static struct sk_buff *held;			/* the packet that waits for the next one of its queue pair */
static struct rxe_qp *held_qp;
static struct hrtimer held_timer;

/* ---------------------------------------------------------------------------------------------------- the list */

static enum happening note(struct rxe_dev *rxe, u32 qp, struct rxe_pkt_info *pkt, unsigned int bytes, bool arrives,
			   enum happening fate)
{
	struct packet *packet;

	if (listed == MOST_PACKETS)
		return fate;
	packet = &packets[listed++];
	packet->ns = ktime_get_ns() - started;
	packet->number = arrives ? received : sent;
	packet->received = arrives;
	packet->qp = qp;
	packet->destination = bth_qpn(pkt);
	packet->psn = bth_psn(pkt);
	packet->opcode = bth_opcode(pkt);
	packet->bytes = bytes;
	packet->fate = fate;
	strscpy(packet->device, rxe->ib_dev.name, sizeof(packet->device));
	return fate;
}

static void *list_at(struct seq_file *file, loff_t *at)
{
	return *at < listed ? &packets[*at] : NULL;
}

static void *list_next(struct seq_file *file, void *value, loff_t *at)
{
	++*at;
	return list_at(file, at);
}

static void list_stop(struct seq_file *file, void *value)
{
}

static int list_show(struct seq_file *file, void *value)
{
	const struct packet *packet = value;

	seq_printf(file, "%s %u %llu %s %u %u %u %u %u %s\n", packet->received ? "received" : "sent", packet->number,
		   packet->ns, packet->device, packet->qp, packet->destination, packet->psn, packet->opcode, packet->bytes,
		   names[packet->fate]);
	return 0;
}

static const struct seq_operations list_ops = {
	.start = list_at,
	.next = list_next,
	.stop = list_stop,
	.show = list_show,
};

/* --------------------------------------------------------------------------------------------------- happenings */

static bool is_dark(const struct rxe_dev *rxe)
{
	int at;

	for (at = 0; at < darkened; at++)
		if (dark[at].rxe == rxe)
			return true;
	return false;
}

static void darken(struct rxe_dev *rxe, struct net_device *ndev)
{
	if (!ndev || is_dark(rxe) || darkened == MOST_DARK)
		return;
	dev_hold(ndev);
	dark[darkened].rxe = rxe;
	dark[darkened++].ndev = ndev;
	netif_carrier_off(ndev);
}

static void kill_owner(struct rxe_qp *qp)
{
	if (qp->ibqp.res.task)
		send_sig(SIGKILL, qp->ibqp.res.task, 1);
}

static enum happening due(u32 number, bool arrives)
{
	int at;

	for (at = 0; at < MOST_EVENTS; at++)
		if (events[at].number == number && (events[at].what >= FAR_BEFORE) == arrives)
			return events[at].what;
	return NOTHING;
}

/* What becomes of a packet that is about to leave. */
static enum happening decide(struct rxe_dev *rxe, struct rxe_qp *qp, struct rxe_pkt_info *pkt, struct sk_buff *skb)
{
	enum happening what = due(++sent, false);

	if (what == DOWN_BEFORE || what == BOTH)
		darken(rxe, skb->dev);
	else if (is_dark(rxe))
		what = what == KILLED ? KILLED : DARK;
	return note(rxe, qp->ibqp.qp_num, pkt, skb->len, false, what);
}

/* Take out the packet that is held, for this queue pair or for any. The caller sends it and puts the queue pair. */
static struct sk_buff *take_held(const struct rxe_qp *qp, struct rxe_qp **owner)
{
	struct sk_buff *skb = held;

	if (!skb || (qp && held_qp != qp))
		return NULL;
	*owner = held_qp;
	held = NULL;
	held_qp = NULL;
	return skb;
}

static void release(struct sk_buff *skb, struct rxe_qp *owner)
{
	struct rxe_pkt_info pkt = { .qp = owner };

	if (!skb)
		return;
	pkt.rxe = to_rdev(owner->ibqp.device);
	if (is_dark(pkt.rxe))
		kfree_skb(skb);
	else
		rxe_send(skb, &pkt);
	rxe_put(owner);
}

static enum hrtimer_restart nothing_followed(struct hrtimer *timer)
{
	struct rxe_qp *owner = NULL;
	struct sk_buff *skb;
	unsigned long flags;

	spin_lock_irqsave(&lock, flags);
	skb = take_held(NULL, &owner);
	spin_unlock_irqrestore(&lock, flags);
	release(skb, owner);
	return HRTIMER_NORESTART;
}

/* Hold a packet; false where that cannot be, and it is sent at once. */
static bool hold(struct rxe_qp *qp, struct sk_buff *skb)
{
	if (held || !rxe_get(qp))
		return false;
	held = skb;
	held_qp = qp;
	hrtimer_start(&held_timer, ns_to_ktime(HELD_NS), HRTIMER_MODE_REL_SOFT);
	return true;
}

/* Send a packet that is complete, as its event says. */
int rxe_events_send(struct rxe_qp *qp, struct rxe_pkt_info *pkt, struct sk_buff *skb)
{
	struct rxe_dev *rxe = to_rdev(qp->ibqp.device);
	struct net_device *ndev = skb->dev;
	struct sk_buff *copy = NULL, *earlier;
	struct rxe_qp *owner = NULL;
	enum happening what;
	unsigned long flags;
	int err = 0;

	spin_lock_irqsave(&lock, flags);
	what = decide(rxe, qp, pkt, skb);
	earlier = take_held(qp, &owner);
	if (what == DELAYED && !earlier && hold(qp, skb))
		skb = NULL;
	spin_unlock_irqrestore(&lock, flags);

	if (what == KILLED || what == BOTH)
		kill_owner(qp);
	if (skb && (what == LOST || is_dark(rxe))) {
		kfree_skb(skb);
		skb = NULL;
	}
	if (skb && what == DUPLICATED)
		copy = skb_copy(skb, GFP_ATOMIC);
	if (skb)
		err = rxe_send(skb, pkt);
	if (copy)
		rxe_send(copy, pkt);
	release(earlier, owner);
	if (what == DOWN_AFTER) {
		spin_lock_irqsave(&lock, flags);
		darken(rxe, ndev);
		spin_unlock_irqrestore(&lock, flags);
	}
	return err;
}

/* Whether a packet that has come is received. */
bool rxe_events_receive(struct rxe_dev *rxe, struct rxe_pkt_info *pkt, struct sk_buff *skb)
{
	enum happening what;
	unsigned long flags;

	if (skb->len < RXE_BTH_BYTES)
		return true;
	spin_lock_irqsave(&lock, flags);
	if (is_dark(rxe)) {
		what = DARK;
	} else {
		received++;
		what = due(received, true);
		if (what != NOTHING)
			darken(rxe, skb->dev);
	}
	note(rxe, 0, pkt, skb->len, true, what);
	spin_unlock_irqrestore(&lock, flags);
	return what != DARK && what != FAR_BEFORE;
}

/* --------------------------------------------------------------------------------------------------- the setting */

static int parse(char *text, struct event *into)
{
	char *part, *number;
	int at = 0, what;

	while ((part = strsep(&text, ","))) {
		number = strchr(part, ':');
		if (!number || at == MOST_EVENTS)
			return -EINVAL;
		*number++ = '\0';
		what = match_string(names, DARK, part);
		if (what <= NOTHING || kstrtou32(number, 10, &into[at].number) || !into[at].number)
			return -EINVAL;
		into[at++].what = what;
	}
	return 0;
}

static void light_all(void)
{
	while (darkened) {
		netif_carrier_on(dark[--darkened].ndev);
		dev_put(dark[darkened].ndev);
	}
}

static int prepare(void)
{
	if (packets)
		return 0;
	packets = vmalloc_array(MOST_PACKETS, sizeof(*packets));
	if (!packets)
		return -ENOMEM;
	hrtimer_setup(&held_timer, nothing_followed, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	return proc_create_seq("rxe_packets", 0400, NULL, &list_ops) ? 0 : -ENOMEM;
}

static int events_set(const char *text, const struct kernel_param *kp)
{
	struct event wanted[MOST_EVENTS] = {};
	struct rxe_qp *owner = NULL;
	struct sk_buff *skb;
	unsigned long flags;
	char line[128];
	int err;

	if (strscpy(line, text, sizeof(line)) < 0)
		return -EINVAL;
	strim(line);
	err = prepare();
	if (!err && strcmp(line, "count") && strcmp(line, "off"))
		err = parse(line, wanted);
	if (err)
		return err;
	hrtimer_cancel(&held_timer);
	spin_lock_irqsave(&lock, flags);
	skb = take_held(NULL, &owner);
	memcpy(events, wanted, sizeof(events));
	rxe_events_armed = strcmp(line, "off") != 0;
	if (rxe_events_armed) {
		listed = sent = received = 0;
		started = ktime_get_ns();
	}
	light_all();
	spin_unlock_irqrestore(&lock, flags);
	if (skb) {
		kfree_skb(skb);
		rxe_put(owner);
	}
	return 0;
}

static const struct kernel_param_ops events_ops = { .set = events_set };
module_param_cb(packet_events, &events_ops, NULL, 0200);
